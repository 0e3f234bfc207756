"""Command-line flags that say where a text encoder's parts lie."""

from __future__ import annotations

from dataclasses import dataclass

from ds_hymotion.arguments import flag
from ds_hymotion.text.sources import DEVICES, PRECISIONS, EncoderSources


@dataclass
class EncoderFlags:
    """Flags of the scripts that may encode captions with qwen_clip."""

    qwen: str = flag(EncoderSources.qwen, "qwen_clip: folder or hub name of Qwen3")
    clip: str = flag(EncoderSources.clip, "qwen_clip: folder or hub name of CLIP")
    release_dir: str | None = flag(
        None, "qwen_clip: your clone of the HY-Motion 1.0 repository, whose system prompt is read (nothing is run)"
    )
    system_prompt_file: str | None = flag(
        None, "qwen_clip: text file that is the system prompt, white space included; instead of --release_dir"
    )
    encoder_dtype: str = flag("bf16", f"qwen_clip: what Qwen3 computes in, as in the release: {', '.join(PRECISIONS)}")
    encoder_device: str = flag("auto", f"qwen_clip: where it computes: {', '.join(DEVICES)}")

    def sources(self) -> EncoderSources:
        """The flags as one value.

        Raises:
            UserError: an illegal dtype or device.
        """
        return EncoderSources(
            qwen=self.qwen,
            clip=self.clip,
            release_dir=self.release_dir,
            system_prompt_file=self.system_prompt_file,
            dtype=self.encoder_dtype,
            device=self.encoder_device,
        )
