"""Options of gradient training, which know nothing of torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from idcf.config import BatchSize, Count, CountOrZero, Decay, Rate, Share, Weight

LossName = Literal["fit", "bpr", "margin", "logistic"]
ContrastOver = Literal["induced", "trained"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Options of gradient training; users set them as `train.*`."""

    epochs: Count = 30  # at most, see `patience`
    learning_rate: Rate = 0.005  # of the first epoch
    schedule: Literal["constant", "exponential", "cosine"] = "exponential"
    decay: Share = 0.95  # factor of the exponential schedule, per epoch
    weight_decay: Weight = 0.0  # AdamW's, of network weights only; tables have `reg`
    coupled_decay: Weight = 0.0  # times the weight, added to every gradient (the published code)
    ema: Decay = 0.0  # decay of the running average of the weights, which is the trained model
    batch_size: BatchSize = 256  # interactions per step and process
    accumulate: Count = 1  # batches per step
    patience: CountOrZero = 5  # epochs without improvement before stopping; 0: never stop early
    reg: Weight = 0.05  # penalty on embedding vectors, per interaction
    row_reg: Weight = 0.0  # penalty on embedding vectors, per table row
    bias_reg: Weight = 3.0  # penalty on biases, per table row
    penalty: Literal["squared", "norm"] = "squared"  # of `reg`: ‖p‖² or ‖p‖
    contrast: Weight = 0.0  # weight of the contrastive loss of IDCF
    contrast_over: ContrastOver = "induced"  # see `adaption_objective`
    loss: LossName = "fit"  # of models that do not wrap a backbone
    negatives: CountOrZero = 5  # sampled per positive, for implicit feedback
    precision: Literal["float32", "bfloat16"] = "float32"  # of the forward pass
    compile: bool = False  # use torch.compile
