"""The checks of idcf.testing over every registry row, and rules for the registry as a whole."""

import ast
import inspect
import textwrap

import pytest
from torch import nn

from idcf import testing
from idcf.errors import ConfigError
from idcf.models import base
from idcf.models.registry import all_models, configure, model_entry
from idcf.testing import checks

CASES = [check for name in all_models() for check in testing.model_checks(name)]
MAX_CLASS_LINES = 180  # without docstrings


def _parameter(check):
    name, label = check.args[0], check.func.__name__.removeprefix("check_")
    feedback = "implicit" if True in check.args else "ratings"
    return pytest.param(check, id=f"{name}-{feedback}-{label}")


@pytest.mark.parametrize("check", [_parameter(c) for c in CASES])
def test_every_model(check):
    check()


def test_every_row_is_covered():
    """Rows with a solver, with a backbone and with neither get all checks of their kind."""
    for name, entry in all_models().items():
        run = {c.func.__name__ for c in CASES if c.args[0] == name}
        assert {c.__name__ for c in checks._CHECKS_OF_ALL_MODELS} <= run, name
        by_gradient = checks.is_trained_by_gradient(entry)
        assert ("check_gradients_reach_every_parameter" in run) is by_gradient, name
        inductive = {c.__name__ for c in checks._CHECKS_OF_INDUCTIVE_MODELS} <= run
        assert inductive is ("check_raises_for_unknown_users" not in run), name
        one_kind_only = entry.ratings_only or entry.implicit_only
        assert ("check_refuses_unsupported_feedback" in run) is one_kind_only, name
        kinds = {c.args[1] for c in CASES if c.args[0] == name and len(c.args) > 1}
        accepts = {False: not entry.implicit_only, True: not entry.ratings_only}
        assert kinds == {kind for kind, accepted in accepts.items() if accepted}, name


def test_every_check_is_used():
    written = {n for n, _ in inspect.getmembers(checks, inspect.isfunction) if n[:6] == "check_"}
    assert written == {c.func.__name__ for c in CASES}


def test_every_model_of_the_package_has_a_row():
    """A concrete class that no row builds would escape the checks."""
    built = {entry.model_class for entry in all_models().values()}
    concrete = {c for c in _descendants(base.Model) if not inspect.isabstract(c)}
    assert {c for c in concrete if c.__module__.startswith("idcf.")} == built


def test_abstract_or_final():
    """A class that can be built has no children; it overrides nothing implemented but hooks."""
    abstract = {c for c in vars(base).values() if inspect.isclass(c) and issubclass(c, base.Model)}
    assert all(inspect.isabstract(c) for c in abstract)
    for kind in _descendants(base.Model) - abstract:
        if not kind.__module__.startswith("idcf."):
            continue
        assert not inspect.isabstract(kind), f"{kind} is abstract and does not live in models/base"
        assert not kind.__subclasses__(), f"{kind} is final"
        for parent in abstract & set(kind.__mro__):
            implemented = {
                name
                for name, member in vars(parent).items()
                if inspect.isfunction(member) and _is_implemented(name, member)
            }
            overridden = implemented & vars(kind).keys()
            assert not overridden, (kind, overridden)


HOOK_OF_FLAG = {
    "has_uncertainty": "predictive_std",
    "suggests_questions": "question_gains",
    "accepts_new_items": "with_item_ratings",
    "accepts_unseen_items": "with_n_items",
}


def test_hooks_do_nothing_by_default():
    """A model that overrides no hook is trained with the loss of its preset."""
    hooks = {n for n, x in vars(base.Model).items() if getattr(x, base.HOOK_MARK, False)}
    with_default_none = {
        "loss_terms": (None,),
        "cohort_weights": (None,),
        "item_similarities": (0,),
        "similarities_among": (None,),
        "item_popularity": (),
        "ranking_without_data": (),
    }
    others = {"corrects_scores", "extra_loss_terms", "interval_ratio"}
    others |= {"user_data_with", "discard_training_state", "index_problem"}
    assert hooks == {*with_default_none, *others, *HOOK_OF_FLAG.values()}
    for name, arguments in with_default_none.items():
        assert getattr(base.Model, name)(None, *arguments) is None
    assert base.Model.extra_loss_terms(None, None) == {}
    assert base.Model.interval_ratio(None, 0.9) == 1
    assert base.Model.user_data_with(None) == "sums"
    assert base.Model.index_problem(None) == ""


def test_a_model_declares_a_capability_if_and_only_if_it_implements_the_hook():
    for name, entry in all_models().items():
        for flag, hook in HOOK_OF_FLAG.items():
            implements = getattr(entry.model_class, hook) is not getattr(base.Model, hook)
            assert getattr(entry.model_class, flag) == implements, (name, flag)
    bias = model_entry("bias").model_class.__new__(model_entry("bias").model_class)
    with pytest.raises(ConfigError, match="BiasModel has no standard deviations"):
        bias.predictive_std(None, None, None)


def n_code_lines(source):
    """Count the lines of a class without docstrings."""
    tree = ast.parse(textwrap.dedent(source))
    documented = (ast.ClassDef, ast.FunctionDef)
    docstrings = [
        node.body[0]
        for node in ast.walk(tree)
        if isinstance(node, documented) and ast.get_docstring(node)
    ]
    n_docstring_lines = sum(x.end_lineno - x.lineno + 1 for x in docstrings)
    return len(source.splitlines()) - n_docstring_lines


def test_no_class_is_long():
    for kind in {c for c in _descendants(nn.Module) if c.__module__.startswith("idcf.")}:
        assert n_code_lines(inspect.getsource(kind)) <= MAX_CLASS_LINES, kind


def test_models_declare_their_capabilities():
    for name, entry in all_models().items():
        assert isinstance(entry.inductive, bool), name
        assert isinstance(entry.model_class.reads_history, bool), name
        assert entry.model_class.__doc__, name
        assert not (entry.solver and entry.backbone), name


def test_a_wrapper_names_a_backbone():
    for name, entry in all_models().items():
        if entry.backbone:
            assert issubclass(model_entry(entry.backbone).model_class, base.Backbone), name


def test_only_a_backbone_can_be_wrapped():
    bias = model_entry("bias").model_class.__new__(model_entry("bias").model_class)
    with pytest.raises(ConfigError, match="BiasModel cannot be wrapped by IDCF"):
        model_entry("idcf-nn").build_around(configure("idcf-nn"), bias, None)


def test_the_grid_lists_options_that_exist():
    for name, entry in all_models().items():
        for grid in (entry.grid, entry.implicit_grid or {}):
            for key, values in grid.items():
                for value in values:
                    assert getattr(configure(name, {key: value}), key) == value


def test_unknown_names_raise_with_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean 'nnmf'"):
        model_entry("nnfm")
    with pytest.raises(ConfigError, match=r"model 'pmf'.*'embeding_size'.*'embedding_size'"):
        configure("pmf", {"embeding_size": 3})
    with pytest.raises(ConfigError, match=r"'heads' is 'two'"):
        configure("idcf-nn", {"heads": "two"})


def _descendants(kind):
    return {c for child in kind.__subclasses__() for c in {child} | _descendants(child)}


def _is_implemented(name, function):
    marks = ("__isabstractmethod__", base.HOOK_MARK)
    return not name.startswith("__") and not any(getattr(function, x, False) for x in marks)
