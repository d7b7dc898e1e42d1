"""The rival systems of the paper and its ablations, as rows of the model registry.

They join the library through the entry-point group `idcf.models`, like models of any other package.
"""

from __future__ import annotations

from idcf.models.gcmc import GCMC, GCMCConfig
from idcf.models.idcf import IDCF, IDCFConfig
from idcf.models.matrix_factorization import MatrixFactorization, MatrixFactorizationConfig
from idcf.models.registry import ModelEntry
from idcf.paper.models.bomic import Bomic, BomicConfig
from idcf.paper.models.feae import FEAE, FEAEConfig
from idcf.paper.models.fism import FISM, FISMConfig
from idcf.paper.models.gcmc_softmax import GCMCSoftmax, GCMCSoftmaxConfig
from idcf.paper.models.igmc import IGMC, IGMCConfig
from idcf.paper.models.mult_vae import MultVAE, MultVAEConfig
from idcf.paper.models.ngcf import NGCF, NGCFConfig
from idcf.paper.models.nimc import Nimc, NimcConfig
from idcf.paper.models.pinsage import PinSage, PinSageConfig
from idcf.paper.models.trans_user import TransUser, TransUserConfig

# name -> registry row; names are those of the presets, the tables and `idcf evaluate --models`
SYSTEMS: dict[str, ModelEntry] = {
    "fism": ModelEntry(FISM, FISMConfig, check_options={"embedding_size": 8}),
    "mult-vae": ModelEntry(
        MultVAE,
        MultVAEConfig,
        check_options={"embedding_size": 8, "hidden": 16, "beta": 0.05, "anneal": 20},
    ),
    "bomic": ModelEntry(
        Bomic,
        BomicConfig,
        solver="idcf.paper.solvers.bomic:fit_bomic",
        grid={"reg": (0.6, 0.8, 1.0), "user_reg": (0.15, 0.3)},
        ratings_only=True,
        check_options={"reg": 0.4, "user_reg": 0.3, "rank": 8},
    ),
    "nimc": ModelEntry(
        Nimc,
        NimcConfig,
        ratings_only=True,
        check_options={"embedding_size": 8, "user_features": False, "item_features": False},
        learns_item_quality_only=True,
    ),
    "nnmf-original": ModelEntry(
        MatrixFactorization,
        MatrixFactorizationConfig,
        {"head": "concat", "embedding_size": 60, "hidden": (50, 50, 50)},
        check_options={"embedding_size": 8, "plain_size": 4, "hidden": (16,)},
    ),
    "f-eae": ModelEntry(
        FEAE,
        FEAEConfig,
        ratings_only=True,
        check_options={"channels": 16, "code": 8, "dropout": 0.1},
        learns_item_quality_only=True,
    ),
    "gcmc-softmax": ModelEntry(
        GCMCSoftmax,
        GCMCSoftmaxConfig,
        ratings_only=True,
        check_options={"hidden": 20, "embedding_size": 8, "node_dropout": 0.1, "dropout": 0.1},
    ),
    "igmc": ModelEntry(
        IGMC,
        IGMCConfig,
        ratings_only=True,
        check_options={"layers": 3, "size": 8, "train_cap": 15, "hidden": 16, "dropout": 0.0},
    ),
    "ngcf": ModelEntry(
        NGCF,
        NGCFConfig,
        implicit_only=True,
        check_options={"embedding_size": 8, "layers": 2},
        check_loss="bpr",
    ),
    "pinsage": ModelEntry(
        PinSage,
        PinSageConfig,
        implicit_only=True,
        check_options={"embedding_size": 16, "neighbors": 8},
        check_loss="bpr",
    ),
    "nnmf-rd": ModelEntry(
        MatrixFactorization,
        MatrixFactorizationConfig,
        {"head": "perceptron", "random_items": True},
        presets_of="nnmf",
        check_options={"embedding_size": 8, "hidden": (16,)},
        learns_item_quality_only=True,
    ),
    "rd-item": ModelEntry(
        IDCF,
        IDCFConfig,
        backbone="nnmf-rd",
        presets_of="idcf-nn",
        check_options={"n_attended_users": 24},
    ),
    "meta-path": ModelEntry(
        IDCF,
        IDCFConfig,
        {"neighbor_scope": "meta-path"},
        backbone="nnmf",
        presets_of="idcf-nn",
        check_options={"n_attended_users": 24},
    ),
    "gcmc-rd": ModelEntry(
        GCMC,
        GCMCConfig,
        {"random_items": True},
        presets_of="gcmc",
        check_options={"embedding_size": 8, "hidden": (16,)},
        learns_item_quality_only=True,
    ),
    "rd-item-gc": ModelEntry(
        IDCF,
        IDCFConfig,
        backbone="gcmc-rd",
        presets_of="idcf-gc",
        check_options={"n_attended_users": 24},
    ),
    "meta-path-gc": ModelEntry(
        IDCF,
        IDCFConfig,
        {"neighbor_scope": "meta-path"},
        backbone="gcmc",
        presets_of="idcf-gc",
        check_options={"n_attended_users": 24},
    ),
    "idcf-nn-additive": ModelEntry(
        IDCF,
        IDCFConfig,
        {"attention": "additive"},
        backbone="nnmf",
        presets_of="idcf-nn",
        check_options={"n_attended_users": 24},
    ),
    "idcf-nn-literal": ModelEntry(  # Eq. 4 as printed: the weights hardly depend on the user
        IDCF,
        IDCFConfig,
        {"attention": "literal"},
        backbone="nnmf",
        presets_of="idcf-nn",
        check_options={"n_attended_users": 24},
        learns_item_quality_only=True,
    ),
    "trans-user-gc": ModelEntry(
        TransUser, TransUserConfig, backbone="gcmc", check_options={"steps": 8}
    ),
    "trans-user": ModelEntry(
        TransUser, TransUserConfig, backbone="nnmf", check_options={"steps": 8}
    ),
    "trans-user-ridge": ModelEntry(
        TransUser,
        TransUserConfig,
        backbone="nnmf",
        grid={"reg": (1.0, 3.0, 10.0, 30.0, 100.0), "bias_reg": (3.0, 8.0)},
        implicit_grid={"reg": (0.1, 1.0, 10.0, 100.0), "bias_reg": (1.0,)},
        check_options={"reg": 1.0, "bias_reg": 1.0},
    ),
}
