"""What tells DeepSpeed that experts live on some data ranks only: its own MoE plumbing, without its gate.

DeepSpeed looks for an instance of its ``MoE`` layer in the module, and for marks on parameters; then it makes the
groups of ranks that hold the same experts, reduces the gradients of marked parameters inside them and divides by all
data ranks, as it does for the others.
"""

from __future__ import annotations

from typing import Any

from deepspeed.moe.layer import MoE
from deepspeed.utils import groups
from torch import nn

from ds_hymotion.parallel.experts import group_name


class ExpertAxis(MoE):
    """A layer without parameters or computation that makes DeepSpeed's expert groups.

    Data rank d belongs to owner d modulo ``size``; rows are brought to their expert by the batch plan. All ranks have
    the layer, those of pipeline stages without experts too, because all of them must take part in making groups.
    """

    def __init__(self, experts: int, size: int, tensor_ranks: int = 1) -> None:
        nn.Module.__init__(self)
        self.use_residual = False
        self.enable_expert_tensor_parallelism = False
        self.ep_size = size
        self.num_experts = experts
        self.num_local_experts = experts // size
        self.expert_group_name = group_name(size)
        self.tensor_ranks = tensor_ranks

    def set_deepspeed_parallelism(self, use_data_before_expert_parallel_: bool = False) -> None:
        """Make the groups (collective over all ranks)."""
        if self.tensor_ranks > 1:
            groups._create_expert_data_and_model_parallel(self.ep_size, mpu=groups.mpu)
        else:
            groups._create_expert_and_data_parallel(self.ep_size)

    @property
    def sharers(self) -> Any:
        """The process group of as many ranks as there are owners, this one among them, in the owners' order."""
        return groups._get_expert_parallel_group(self.expert_group_name)

    @property
    def holders(self) -> Any:
        """The process group of the ranks that hold the same experts as this one."""
        return groups._get_expert_data_parallel_group(self.expert_group_name)
