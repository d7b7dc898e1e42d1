"""The rival systems of the paper and its ablations, as rows of the model registry.

They join the library through the entry-point group `idcf.models`, like models of any other package.
"""

from __future__ import annotations

from idcf.models.baselines import FoldInConfig, FoldInModel
from idcf.models.bayes import BayesConfig, BayesModel
from idcf.models.gcmc import GCMC, GCMCConfig
from idcf.models.idcf import IDCF, IDCFConfig
from idcf.models.matrix_factorization import MatrixFactorization, MatrixFactorizationConfig
from idcf.models.registry import ModelEntry
from idcf.paper.models.agnn import AGNN, AGNNConfig
from idcf.paper.models.bomic import Bomic, BomicConfig
from idcf.paper.models.demographic_ridge import DemographicRidge, DemographicRidgeConfig
from idcf.paper.models.feae import FEAE, FEAEConfig
from idcf.paper.models.fism import FISM, FISMConfig
from idcf.paper.models.gcmc_features import GCMCFeatures, GCMCFeaturesConfig
from idcf.paper.models.gcmc_softmax import GCMCSoftmax, GCMCSoftmaxConfig
from idcf.paper.models.hybrid import (
    HybridBackbone,
    HybridBackboneConfig,
    HybridConfig,
    HybridIDCF,
)
from idcf.paper.models.igmc import IGMC, IGMCConfig
from idcf.paper.models.melu import MeLU, MeLUConfig
from idcf.paper.models.mult_vae import MultVAE, MultVAEConfig
from idcf.paper.models.ngcf import NGCF, NGCFConfig
from idcf.paper.models.nimc import Nimc, NimcConfig
from idcf.paper.models.pinsage import PinSage, PinSageConfig
from idcf.paper.models.trans_user import TransUser, TransUserConfig
from idcf.paper.models.wide_deep import WideDeep, WideDeepConfig

_MELU_CHECKS = {"embedding_size": 8, "hidden": (16,)}

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
    # iALS with popularity added to its scores, chosen by the AUC: not in the paper, but the simple
    # system to beat where held-out items are compared with random ones
    "als-popularity": ModelEntry(
        FoldInModel,
        FoldInConfig,
        solver="idcf.training.solvers.als:fit_als",
        grid={
            "embedding_size": (64,),
            "alpha": (3.0, 10.0),
            "reg": (1.0, 10.0),
            "popularity_weight": (0.03, 0.1, 0.3),
        },
        implicit_grid_metric="auc",
        implicit_only=True,
        check_options={"reg": 1.0, "embedding_size": 4, "popularity_weight": 0.03},
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
    "demographic-ridge": ModelEntry(
        DemographicRidge,
        DemographicRidgeConfig,
        solver="idcf.paper.solvers.demographic_ridge:fit_demographic_ridge",
        grid={"crosses": (False, True), "reg": (100.0, 300.0, 1000.0, 3000.0)},
        ratings_only=True,
        check_options={"reg": 0.1},
        learns_from_features=True,
    ),
    "wide-deep": ModelEntry(
        WideDeep,
        WideDeepConfig,
        ratings_only=True,
        check_options={"embedding_size": 4, "hidden": (16,)},
        learns_from_features=True,
    ),
    "gcmc-features": ModelEntry(
        GCMCFeatures,
        GCMCFeaturesConfig,
        ratings_only=True,
        check_options={
            "hidden": 20,
            "embedding_size": 8,
            "feature_size": 8,
            "node_dropout": 0.1,
            "dropout": 0.1,
        },
        learns_from_features=True,
    ),
    "agnn": ModelEntry(
        AGNN,
        AGNNConfig,
        ratings_only=True,
        check_options={"embedding_size": 8, "hidden": (16,), "n_candidates": 8, "n_neighbors": 4},
        learns_from_features=True,
    ),
    "melu": ModelEntry(
        MeLU,
        MeLUConfig,
        ratings_only=True,
        check_options=_MELU_CHECKS,
        learns_from_features=True,
    ),
    "melu-first-order": ModelEntry(
        MeLU,
        MeLUConfig,
        {"first_order": True},
        presets_of="melu",
        ratings_only=True,
        check_options=_MELU_CHECKS,
        learns_from_features=True,
    ),
    "hybrid": ModelEntry(
        HybridBackbone,
        HybridBackboneConfig,
        ratings_only=True,
        check_options={"embedding_size": 8, "hidden": (16,), "relation_sample": 24},
        learns_from_features=True,
    ),
    "idcf-hy": ModelEntry(
        HybridIDCF,
        HybridConfig,
        backbone="hybrid",
        ratings_only=True,
        check_options={"n_attended_users": 24},
        learns_from_features=True,
    ),
    "idcf-hy-meta": ModelEntry(
        HybridIDCF,
        HybridConfig,
        {"meta_groups": 8},
        backbone="hybrid",
        presets_of="idcf-hy",
        ratings_only=True,
        check_options={"n_attended_users": 24, "meta_groups": 2},
        learns_from_features=True,
    ),
    "idcf-bayes-features": ModelEntry(
        BayesModel,
        BayesConfig,
        {"user_features": True, "item_features": True},
        solver="idcf.training.solvers.bayes:fit_bayes",
        presets_of="idcf-bayes",
        ratings_only=True,
    ),
}
