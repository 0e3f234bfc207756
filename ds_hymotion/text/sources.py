"""Where the parts of a text encoder lie: weights, tokenizers and system prompt."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ds_hymotion.errors import UserError
from ds_hymotion.text.system_prompt import SystemPrompt, prompt_of_file, prompt_of_release

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class EncoderSources:
    """What :class:`ds_hymotion.text.qwen_clip.QwenClipEncoder` is made of.

    Attributes:
        qwen, clip: folders, or names on the Hugging Face hub.
        release_dir, system_prompt_file: where the system prompt comes from; one of them.
        dtype: what Qwen3 computes in: bf16 as in the release, fp16 or fp32. CLIP computes in fp32.
        device: auto (a GPU if there is one), cpu, cuda, or a place of torch's.
        prefix: how messages call a setting: "--" on a command line, "hymotion.text." in a JSON.

    Raises:
        UserError: an illegal dtype or device.
    """

    qwen: str = "Qwen/Qwen3-8B"
    clip: str = "openai/clip-vit-large-patch14"
    release_dir: str | None = None
    system_prompt_file: str | None = None
    dtype: str = "bf16"
    device: str = "auto"
    prefix: str = "--"

    def __post_init__(self) -> None:
        if self.dtype not in PRECISIONS:
            raise UserError(f"{self.prefix}encoder_dtype {self.dtype!r} is not one of {', '.join(PRECISIONS)}")
        if self.device.split(":")[0] not in DEVICES:
            raise UserError(f"{self.prefix}encoder_device {self.device!r} is not one of {', '.join(DEVICES)}")
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise UserError(f"{self.prefix}encoder_device {self.device}: torch sees no GPU; use cpu")

    @property
    def place(self) -> torch.device:
        """The device, chosen where it is auto."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    def system_prompt(self) -> SystemPrompt:
        """The prompt from the one source given.

        Raises:
            UserError: no source, both, or one that holds no prompt.
        """
        release, file = f"{self.prefix}release_dir", f"{self.prefix}system_prompt_file"
        if (self.release_dir is None) == (self.system_prompt_file is None):
            given = "neither is given" if self.release_dir is None else "both are given"
            raise UserError(
                f"the text encoder needs the release's system prompt, from {release} (your clone of the HY-Motion 1.0 "
                f"repository) or from {file}: {given}, give one"
            )
        if self.release_dir is not None:
            return prompt_of_release(self.release_dir)
        assert self.system_prompt_file is not None
        return prompt_of_file(self.system_prompt_file)
