"""Makes the parity goldens: tiny random models of every supported family, with the logits that the
transformers library computes for them in float32 on the CPU with plain ("eager") attention.

    pip install torch transformers peft safetensors numpy
    python tests/goldens/make_goldens.py

Each folder holds a checkpoint in the ecosystem's format and golden.json:
    tokens         the prompt's token ids
    positions      the rows that are kept
    logits         one row of vocabulary size for each kept position
    next_logprobs  log-probability of tokens[p + 1] given tokens[..=p], for every p
A folder may hold adapter/ (made by the peft library) and golden_adapter.json in the same form, and
golden_gradients.json: the mean cross-entropy of all tokens after the first under the adapter, and its
gradient for every factor of the adapter as PyTorch computes it.
Everything is seeded; running it again gives the same files up to the versions of the libraries.
"""

import json
import pathlib
import shutil

import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

HERE = pathlib.Path(__file__).parent
VOCAB = 96
LENGTH = 70  # crosses two blocks of 32 cached positions
POSITIONS = [0, 1, 6, 31, 32, 47, 63, 69]


def build(model_class, config, seed):
    """A random model whose norms and biases differ from their neutral starting values."""
    torch.manual_seed(seed)
    config._attn_implementation = "eager"
    model = model_class(config).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.copy_(1.0 + 0.3 * torch.randn_like(weight))
            elif name.endswith("bias"):
                weight.copy_(0.3 * torch.randn_like(weight))
            else:
                weight.copy_(torch.randn_like(weight) * (2.0 / weight.shape[-1] ** 0.5))
    return model


def round_to(model, dtype):
    """Rounds every weight to `dtype` and keeps computing in float32."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.to(dtype).float())


def golden(model, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (1, LENGTH), generator=generator)
    with torch.no_grad():
        logits = model(tokens).logits[0].double()
    logprobs = torch.log_softmax(logits, -1)
    following = logprobs[:-1].gather(1, tokens[0, 1:, None])[:, 0]
    return {
        "made_with": {"transformers": transformers.__version__, "torch": torch.__version__},
        "tokens": tokens[0].tolist(),
        "positions": POSITIONS,
        "logits": [[round(x, 6) for x in logits[p].tolist()] for p in POSITIONS],
        "next_logprobs": [round(x, 6) for x in following.tolist()],
    }


def write_json(path, value):
    path.write_text(json.dumps(value) + "\n")


def save(name, model, seed, dtype=torch.float32, max_shard_size="5GB"):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    round_to(model, dtype)
    write_value = golden(model, seed)
    stored = type(model)(model.config).to(dtype)
    stored.load_state_dict(model.state_dict())
    stored.save_pretrained(folder, max_shard_size=max_shard_size)
    (folder / "generation_config.json").unlink(missing_ok=True)
    write_json(folder / "golden.json", write_value)
    return folder


def save_adapter(folder, model, lora, seed):
    """A LoRA adapter with both factors random, so that it changes the logits."""
    torch.manual_seed(seed)
    adapted = get_peft_model(model, lora).eval()
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.copy_(0.2 * torch.randn_like(weight))
    adapted.save_pretrained(folder / "adapter")
    (folder / "adapter" / "README.md").unlink(missing_ok=True)
    path = folder / "adapter" / "adapter_config.json"
    settings = json.loads(path.read_text())
    settings["target_modules"].sort()  # the library keeps a set
    path.write_text(json.dumps(settings, indent=2) + "\n")
    write_json(folder / "golden_adapter.json", golden(adapted, seed))
    return adapted


def save_gradients(folder, adapted):
    golden = json.loads((folder / "golden_adapter.json").read_text())
    tokens = torch.tensor([golden["tokens"]])
    logits = adapted(tokens).logits[0, :-1]
    loss = torch.nn.functional.cross_entropy(logits, tokens[0, 1:])
    factors = {n.replace(".default", ""): w for n, w in adapted.named_parameters() if "lora_" in n}
    gradients = torch.autograd.grad(loss, list(factors.values()))
    write_json(folder / "golden_gradients.json", {
        "loss": loss.item(),
        "gradients": {
            name: [float(f"{x:.6g}") for x in grad.flatten().tolist()]
            for name, grad in zip(factors, gradients)
        },
    })


def experts(rope):
    """Models with experts: weights that add up to 1 and a dense layer; shares among all experts."""
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    shape = dict(head_dim=16, rope_parameters=rope, intermediate_size=40, moe_intermediate_size=16,
                 num_experts=6, num_experts_per_tok=2)
    config = Qwen3MoeConfig(**sizes(
        **shape, num_hidden_layers=3, mlp_only_layers=[1], norm_topk_prob=True))
    model = build(Qwen3MoeForCausalLM, config, 7)
    folder = save("qwen3_moe", model, 17)
    adapted = save_adapter(
        folder, model, LoraConfig(r=2, lora_alpha=4, target_modules=attention,
                                  task_type="CAUSAL_LM"), 27)
    save_gradients(folder, adapted)
    config = Qwen3MoeConfig(**sizes(
        **shape, decoder_sparse_step=2, norm_topk_prob=False, tie_word_embeddings=True))
    model = build(Qwen3MoeForCausalLM, config, 8)
    folder = save("qwen3_moe_shares", model, 18, torch.bfloat16)
    adapted = save_adapter(
        folder, model, LoraConfig(r=2, lora_alpha=4, target_modules=attention,
                                  task_type="CAUSAL_LM"), 28)
    save_gradients(folder, adapted)


def sizes(**changes):
    base = dict(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
    )
    return {**base, **changes}


def main():
    llama3 = dict(
        rope_type="llama3",
        rope_theta=10000.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=32,
    )
    config = LlamaConfig(**sizes(rope_parameters=llama3, rms_norm_eps=1e-5))
    save("llama", build(LlamaForCausalLM, config, 1), 11, torch.bfloat16)

    config = LlamaConfig(
        **sizes(attention_bias=True, mlp_bias=True, rope_parameters=dict(
            rope_type="linear", rope_theta=500.0, factor=2.0)))
    save("llama_bias", build(LlamaForCausalLM, config, 2), 12, torch.float16)

    rope = dict(rope_type="default", rope_theta=1000000.0)
    config = Qwen2Config(**sizes(tie_word_embeddings=True, rope_parameters=rope))
    folder = save("qwen2", build(Qwen2ForCausalLM, config, 3), 13, max_shard_size="40KB")
    assert (folder / "model.safetensors.index.json").exists(), "qwen2 must be sharded"

    config = Qwen3Config(**sizes(head_dim=16, tie_word_embeddings=True, rope_parameters=rope))
    model = build(Qwen3ForCausalLM, config, 4)
    folder = save("qwen3", model, 14)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    save_adapter(
        folder, model, LoraConfig(r=4, lora_alpha=8, target_modules=targets, lora_dropout=0.0,
                                  task_type="CAUSAL_LM"), 24)

    config = Qwen3Config(
        **sizes(head_dim=16, num_hidden_layers=3, rope_parameters=rope, use_sliding_window=True,
                sliding_window=5, max_window_layers=1))
    model = build(Qwen3ForCausalLM, config, 5)
    folder = save("qwen3_sliding", model, 15)
    save_adapter(
        folder, model, LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj", "v_proj"],
                                  use_rslora=True, task_type="CAUSAL_LM"), 25)

    yarn = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                original_max_position_embeddings=32)
    config = Qwen2Config(
        **sizes(rope_parameters=yarn, num_key_value_heads=4, max_position_embeddings=128))
    save("qwen2_yarn", build(Qwen2ForCausalLM, config, 6), 16)

    experts(rope)

    for path in HERE.rglob("*.safetensors"):
        path.chmod(0o644)


if __name__ == "__main__":
    main()
