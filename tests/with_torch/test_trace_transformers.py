"""Hugging Face transformers from a config: exported whole, tied weights once, gradients in autograd's order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dovetail.trace.record import record

transformers = pytest.importorskip("transformers")

TOKENS = torch.arange(24).reshape(2, 12)
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def gpt2() -> tuple[nn.Module, dict[str, Tensor]]:
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=16, vocab_size=64, n_positions=16, bos_token_id=1, eos_token_id=2
    )
    return transformers.GPT2LMHeadModel(config), {"input_ids": TOKENS, "labels": TOKENS}


def bert() -> tuple[nn.Module, dict[str, Tensor]]:
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=64, **SMALL))
    return model, {"input_ids": TOKENS, "labels": TOKENS}


def vit() -> tuple[nn.Module, dict[str, Tensor]]:
    model = transformers.ViTForImageClassification(transformers.ViTConfig(image_size=16, patch_size=8, **SMALL))
    return model, {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 1])}


def t5() -> tuple[nn.Module, dict[str, Tensor]]:
    config = transformers.T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config), {"input_ids": TOKENS, "labels": TOKENS}


def modules(names: list[str]) -> list[str]:
    """The modules the names belong to; a weight and a bias that one autograd node completes have no order."""
    return [name.rpartition(".")[0] for name in names]


@pytest.mark.parametrize("make", [gpt2, bert, vit, t5])
def test_transformer_is_exported_with_tied_weights_once(make: object) -> None:
    model, inputs = make()  # type: ignore[operator]
    report = record(model, inputs, runs=1)
    profile = report.profile
    assert report.method == "export", report.notes
    assert [p.name for p in profile.params] == [n for n, _ in model.named_parameters()]
    order: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, n=name: order.append(n))
    model(**inputs).loss.backward()
    made = sorted(profile.production, key=profile.production.__getitem__)[: len(order)]
    assert modules(made) == modules(order)
    read = {name for op in profile.ops for name in op.reads}
    assert read >= set(order)
