"""The package `kernels` must stay light, and must not be taken for the third-party package of that name."""

from __future__ import annotations

import subprocess
import sys


def test_importing_kernels_imports_neither_torch_nor_triton() -> None:
    code = "import kernels, sys; assert not {'torch', 'triton'} & set(sys.modules); print(kernels.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0.1.0"


def test_transformers_builds_a_model_with_our_kernels_package_in_the_way() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    assert LlamaForCausalLM(config).num_parameters() > 0
