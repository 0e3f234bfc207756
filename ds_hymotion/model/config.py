"""The sizes of a network."""

from __future__ import annotations

from dataclasses import dataclass

from ds_hymotion.errors import UserError


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of the DiT; the defaults are the release's.

    Attributes:
        feat_dim: width C of the residual streams.
        num_layers: blocks in all; a third are double-stream, the rest single-stream.
        num_heads: attention heads of width feat_dim / num_heads.
        input_dim: motion channels, in and out.
        ctxt_input_dim: width of a text token's features.
        vtxt_input_dim: width of the pooled text vector.
        mlp_ratio: hidden width of the MLPs over feat_dim.
        refiner_layers: blocks of the text refiner.
        band_frames: motion attends to motion at most this many frames away.
        text_position: RoPE position of the first text token, on every canvas; also the longest motion in frames.
        time_factor: scales t before the adapter's sinusoid (not the refiner's).
        rope_theta: base of the RoPE frequencies.
        chunk_frames: by time: frames of a chunk, each predicted by itself; 0 = whole motions.
        halo_frames: by time: last frames of the previous chunk that a chunk sees as further tokens.
        state_frames: by time: last frames of a chunk that its state is made of.
        state_dim: by time: numbers of the state that goes from chunk to chunk.
        clean_states: by time: states are made of the motion itself, not of the noised input; sampling then makes one
            chunk after the other.
        chunk_networks: by time: networks for chunk 0, 1, …, each with weights of its own; 1 = all chunks share one.
        expert_names: action types that have experts; () = none.
        expert_blocks: last single-stream blocks that exist once per expert, as the head then does.

    Raises:
        UserError: a size that no network can have.
    """

    feat_dim: int
    num_layers: int
    num_heads: int
    input_dim: int = 201
    ctxt_input_dim: int = 4096
    vtxt_input_dim: int = 768
    mlp_ratio: float = 4.0
    refiner_layers: int = 2
    band_frames: int = 60
    text_position: int = 360
    time_factor: float = 1000.0
    rope_theta: float = 10000.0
    chunk_frames: int = 0
    halo_frames: int = 0
    state_frames: int = 30
    state_dim: int = 256
    clean_states: bool = False
    chunk_networks: int = 1
    expert_names: tuple[str, ...] = ()
    expert_blocks: int = 0

    def __post_init__(self) -> None:
        for name in (
            "feat_dim",
            "num_layers",
            "num_heads",
            "input_dim",
            "ctxt_input_dim",
            "vtxt_input_dim",
            "text_position",
            "state_frames",
            "state_dim",
            "chunk_networks",
        ):
            if getattr(self, name) < 1:
                raise UserError(f"model {name} = {getattr(self, name)} must be at least 1")
        for name in ("refiner_layers", "band_frames", "chunk_frames", "halo_frames"):
            if getattr(self, name) < 0:
                raise UserError(f"model {name} = {getattr(self, name)} must not be negative")
        for name in ("time_factor", "rope_theta"):
            if not getattr(self, name) > 0:
                raise UserError(f"model {name} = {getattr(self, name)} must be positive")
        for name in ("halo_frames", "state_frames"):
            if self.chunk_frames and getattr(self, name) > self.chunk_frames:
                raise UserError(
                    f"model {name} = {getattr(self, name)} must be at most chunk_frames = {self.chunk_frames}"
                )
        object.__setattr__(self, "expert_names", tuple(self.expert_names))  # a list where it was read from JSON
        if self.num_layers % 3:
            raise UserError(
                f"model num_layers = {self.num_layers} must be divisible by 3, such as "
                f"{max(3, self.num_layers // 3 * 3)}"
            )
        if self.feat_dim % (2 * self.num_heads):
            raise UserError(
                f"model feat_dim = {self.feat_dim} must be an even multiple of num_heads = "
                f"{self.num_heads}, such as {self._legal_width()}"
            )
        if self.mlp_dim < 1:
            raise UserError(f"model mlp_ratio = {self.mlp_ratio} gives MLPs of width {self.mlp_dim}; 4.0 is usual")

        self._check_experts()

    def _check_experts(self) -> None:
        if not self.expert_names and not self.expert_blocks:
            return
        if not self.expert_names:
            raise UserError(f"model expert_blocks = {self.expert_blocks} without expert_names; use 0")
        if len(set(self.expert_names)) < len(self.expert_names):
            raise UserError(f"model expert_names = {list(self.expert_names)} names one twice; use different names")
        if self.chunk_frames:
            raise UserError("model expert_names with chunk_frames: a network by time has no experts; leave one out")
        most = self.most_expert_blocks
        if not 1 <= self.expert_blocks <= most:
            raise UserError(
                f"model expert_blocks = {self.expert_blocks} of {self.num_layers} layers must be in 1..{most}: the "
                f"first {self.num_layers - most} layers are shared"
            )

    @property
    def most_expert_blocks(self) -> int:
        """So many last blocks can belong to experts: single-stream ones, and the first 8 layers (a third of fewer
        than 12) are always shared."""
        shared = 8 if self.num_layers >= 12 else self.num_layers // 3
        return min(self.single_layers, self.num_layers - shared)

    def _legal_width(self) -> int:
        return max(1, self.feat_dim // (2 * self.num_heads)) * 2 * self.num_heads

    @property
    def head_dim(self) -> int:
        return self.feat_dim // self.num_heads

    @property
    def mlp_dim(self) -> int:
        return int(self.feat_dim * self.mlp_ratio)

    @property
    def double_layers(self) -> int:
        return self.num_layers // 3

    @property
    def single_layers(self) -> int:
        return self.num_layers - self.double_layers
