"""Qwen3 and CLIP models of a few thousand random weights, with tokenizers, as folders that transformers loads."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import CLIPTextConfig, CLIPTextModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from ds_hymotion.text.sources import EncoderSources

PROMPT = "\n  Say in numbers how the body moves.\n"
WORDS = "a person walks forward and turns left right then jumps motion number system user Say in numbers how the body"
TEMPLATE = (
    "{% for message in messages %}[open]{{ message['role'] }}\n{{ message['content'] }}[close]\n{% endfor %}"
    "{% if add_generation_prompt %}[open]assistant\n{% if not enable_thinking %}[think]{% endif %}{% endif %}"
)
QWEN_WIDTH, CLIP_WIDTH = 16, 12


def write_qwen(folder: Path, layers: int = 4, template: str | None = TEMPLATE, **sizes: int) -> Path:
    """A causal language model, language head included, and a byte-level tokenizer with a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["[pad]", "[open]", "[close]", "[think]"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS] * 3, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[pad]", eos_token="[close]")
    fast.chat_template = template
    fast.save_pretrained(folder)
    torch.manual_seed(1)
    shape = {"hidden_size": QWEN_WIDTH, "intermediate_size": 32, "num_hidden_layers": layers, "head_dim": 8, **sizes}
    config = Qwen3Config(
        vocab_size=len(fast), num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512, **shape
    )
    model = Qwen3ForCausalLM(config)
    _spread(model)
    model.save_pretrained(folder)
    return folder


def write_clip(folder: Path, width: int = CLIP_WIDTH) -> Path:
    """A text tower, and a tokenizer by words whose closing token also pads."""
    vocabulary = {
        word: place for place, word in enumerate(["[start]", "[end]", "[unknown]", *sorted(set(WORDS.split()))])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[unknown]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[start] $A [end]", special_tokens=[("[start]", 0), ("[end]", 1)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="[start]", eos_token="[end]", pad_token="[end]", unk_token="[unknown]"
    )
    fast.save_pretrained(folder)
    torch.manual_seed(2)
    config = CLIPTextConfig(
        vocab_size=len(fast),
        hidden_size=width,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        projection_dim=5,
        max_position_embeddings=77,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    model = CLIPTextModel(config)
    _spread(model)
    model.save_pretrained(folder)
    return folder


def tiny_sources(folder: Path, dtype: str = "fp32") -> EncoderSources:
    """Both models and a system prompt under ``folder``."""
    prompt = folder / "prompt.txt"
    folder.mkdir(parents=True, exist_ok=True)
    prompt.write_text(PROMPT)
    return EncoderSources(
        str(write_qwen(folder / "Qwen3-tiny")), str(write_clip(folder / "clip-tiny")), None, str(prompt), dtype, "cpu"
    )


def _spread(model: torch.nn.Module) -> None:
    """Weights large enough that every token and every layer shows in the result."""
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) * 0.3 + (parameter.ndim == 1))
