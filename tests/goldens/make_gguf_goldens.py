"""Makes the GGUF goldens with the gguf package: files as the ecosystem writes them, and what they
hold according to that package, to numpy and to the tokenizers library.

    pip install numpy gguf safetensors tokenizers sentencepiece
    python tests/goldens/make_gguf_goldens.py

    gguf/llama.gguf, gguf/qwen2.gguf   the safetensors goldens beside them, converted
    gguf/qwen3_moe.gguf                the golden with experts, some of them quantised
    gguf/qwen3.gguf, gguf/mixed.gguf   all quantised types, qwen2 tokenizers, a chat template
    gguf/words*.gguf                   a tokenizer of every other kind, and no weights
    gguf/qwen3.json, gguf/mixed.json   SHA-256 of every tensor's f32 values, and logits
    gguf/words.json                    token ids of texts, for all tokenizers
"""

import hashlib
import io
import json
import pathlib

import gguf
import numpy as np
import sentencepiece
from gguf import GGMLQuantizationType as Type
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors

HERE = pathlib.Path(__file__).parent
OUT = HERE / "gguf"
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}


def gguf_name(name):
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    layer, rest = name.removeprefix("model.layers.").split(".", 1)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{PARTS[part]}.{kind}"


def read_folder(folder):
    """Tensors of a safetensors folder as (dtype, array); bf16 as its 16 bits."""
    kinds = {"F32": np.float32, "BF16": np.uint16}
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        for name, info in json.loads(raw[8 : 8 + length]).items():
            if name != "__metadata__":
                start, end = (8 + length + at for at in info["data_offsets"])
                array = np.frombuffer(raw[start:end], kinds[info["dtype"]])
                tensors[name] = (info["dtype"], array.reshape(info["shape"]))
    return tensors


def permute(weights, heads):
    """What llama.cpp's converter does to the queries and keys of llama models."""
    shape = weights.shape
    paired = weights.reshape(heads, 2, shape[0] // heads // 2, *shape[1:])
    return paired.swapaxes(1, 2).reshape(shape)


def writer(path, family, config):
    out = gguf.GGUFWriter(OUT / path, family)
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_head_count(config["num_attention_heads"])
    out.add_head_count_kv(config["num_key_value_heads"])
    out.add_key_length(head_dim)
    out.add_value_length(head_dim)
    out.add_rope_dimension_count(head_dim)
    out.add_layer_norm_rms_eps(config["rms_norm_eps"])
    out.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    return out


def finish(out):
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def llama3_divisors(config):
    rope = config["rope_parameters"]
    head_dim = config["hidden_size"] // config["num_attention_heads"]
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    divisors = []
    for frequency in rope["rope_theta"] ** -(np.arange(0, head_dim, 2) / head_dim):
        length = 2 * np.pi / frequency
        if length < high:
            divisors.append(1.0)
        elif length > low:
            divisors.append(rope["factor"])
        else:
            original = rope["original_max_position_embeddings"]
            smooth = (original / length - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"])
            divisors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(divisors, np.float32)


def convert(name):
    config = json.loads((HERE / name / "config.json").read_text())
    out = writer(f"{name}.gguf", name, config)
    if name == "llama":
        out.add_tensor("rope_freqs.weight", llama3_divisors(config))
    for tensor, (dtype, array) in read_folder(HERE / name).items():
        if name == "llama" and "q_proj" in tensor:
            array = permute(array, config["num_attention_heads"])
        if name == "llama" and "k_proj" in tensor:
            array = permute(array, config["num_key_value_heads"])
        if dtype == "BF16" and array.ndim == 1:
            array, dtype = (array.astype(np.uint32) << 16).view(np.float32), "F32"
        if dtype == "BF16":
            raw = np.ascontiguousarray(array).view(np.uint8)
            out.add_tensor(gguf_name(tensor), raw, raw_dtype=Type.BF16)
        else:
            out.add_tensor(gguf_name(tensor), np.ascontiguousarray(array))
    finish(out)


def experts():
    """Experts of a layer in one tensor; gate and up of the first layer in Q8_0, of the last in Q4_0."""
    config = json.loads((HERE / "qwen3_moe/config.json").read_text())
    out = writer("qwen3_moe.gguf", "qwen3moe", config)
    out.add_expert_count(config["num_local_experts"])
    out.add_expert_used_count(config["num_experts_per_tok"])
    out.add_expert_feed_forward_length(config["moe_intermediate_size"])
    tensors = {name: array for name, (_, array) in read_folder(HERE / "qwen3_moe").items()}
    for name, array in tensors.items():
        if ".experts." not in name:
            out.add_tensor(gguf_name(name), np.ascontiguousarray(array))
    for layer, kind in ((0, Type.Q8_0), (2, Type.Q4_0)):
        for part in ("gate", "up", "down"):
            name = f"model.layers.{layer}.mlp.experts.{{}}.{part}_proj.weight"
            whole = np.stack([tensors[name.format(e)] for e in range(config["num_local_experts"])])
            to = f"blk.{layer}.ffn_{part}_exps.weight"
            if part == "down":  # its rows are no whole blocks
                out.add_tensor(to, whole)
            else:
                out.add_tensor(to, gguf.quantize(whole, kind), raw_dtype=kind)
    finish(out)


def random_blocks(rng, kind, shape):
    """K-quants with every bit pattern; the package reads them but does not write them."""
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // values, size), dtype=np.uint8)
    def scale(at, width):
        scales = (rng.uniform(0.5, 1.0, len(blocks)) * width).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    if kind in (Type.Q4_K, Type.Q5_K):
        scale(0, 4e-4 if kind == Type.Q4_K else 2e-4)
        scale(2, 3e-3)
    else:
        scale(208, 2e-4)
    return blocks.reshape(shape[0], -1)


def rms(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def qwen3_logits(config, tensors, tokens):
    """The forward pass of Qwen3 in float64."""
    w = {name: array.astype(np.float64) for name, array in tensors.items()}
    heads, kv, dim = (config[k] for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    eps, count = config["rms_norm_eps"], len(tokens)
    angles = np.outer(
        np.arange(count), config["rope_parameters"]["rope_theta"] ** -(np.arange(0, dim, 2) / dim))
    cos, sin = (np.tile(f(angles), 2)[:, None] for f in (np.cos, np.sin))
    rotate = lambda x: x * cos + np.concatenate([-x[..., dim // 2 :], x[..., : dim // 2]], -1) * sin
    x = w["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        at = lambda part: w[f"model.layers.{layer}.{part}.weight"]
        h = rms(x, at("input_layernorm"), eps)
        q, k, v = (
            (h @ at(f"self_attn.{p}_proj").T).reshape(count, -1, dim) for p in ("q", "k", "v"))
        q = rotate(rms(q, at("self_attn.q_norm"), eps))
        k = rotate(rms(k, at("self_attn.k_norm"), eps))
        k, v = (np.repeat(part, heads // kv, 1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(dim)
        scores += np.triu(np.full((count, count), -np.inf), 1)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), v)
        x = x + mixed.reshape(count, -1) @ at("self_attn.o_proj").T
        h = rms(x, at("post_attention_layernorm"), eps)
        gate = h @ at("mlp.gate_proj").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ at("mlp.up_proj").T)) @ at("mlp.down_proj").T
    return rms(x, w["model.norm.weight"], eps) @ w["model.embed_tokens.weight"].T


def check_reference():
    """The float64 forward against the logits of the transformers library."""
    config = json.loads((HERE / "qwen3/config.json").read_text())
    golden = json.loads((HERE / "qwen3/golden.json").read_text())
    tensors = {name: array for name, (_, array) in read_folder(HERE / "qwen3").items()}
    logits = qwen3_logits(config, tensors, golden["tokens"])[golden["positions"]]
    assert np.abs(logits - np.array(golden["logits"])).max() < 1e-4


MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "1 2", "12 3",
          "4 5", "Ċ Ċ", "Ġ Ġ", "' s", "Ã ©", "e Ì", "i n", "in g"]
WORDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = ["", "hello world", "hello  world\n\n  x", "it's I'LL 12345 1234567890", "naïve cafe\u0301 é",
         "日本語 текст 🙂", "\ttab\r\n\r\nend ", "<|im_start|>user\nhello<|im_end|>", "a<tool>b c",
         "hello" * 3 + "ing"]
SPLITS = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
             r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
                 r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
              r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
              r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "smollm": None,
}


def vocabulary(controls_first=False):
    """With `controls_first` as SmolLM2 has it: before all others, then some that are not used; and
    bytes of no UTF-8 are no tokens."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    if controls_first:
        tokens = [token for token in tokens if not "õ" <= token <= "ÿ"]
    tokens += ["".join(merge.split()) for merge in MERGES]
    kinds = [gguf.TokenType.NORMAL] * len(tokens)
    added = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.USER_DEFINED]
    if controls_first:
        unused = [gguf.TokenType.UNUSED] * 2
        return WORDS + ["<tool>", "[PAD4]", "[PAD5]"] + tokens, added + unused + kinds
    tokens += WORDS + ["<tool>"]
    kinds += added
    while len(tokens) < 288:
        tokens.append(f"[PAD{len(tokens)}]")
        kinds.append(gguf.TokenType.UNUSED)
    return tokens, kinds


def add_words(out, cut, tokens, kinds):
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre(cut)
    out.add_token_list(tokens)
    out.add_token_types(kinds)
    out.add_token_merges(MERGES)
    out.add_bos_token_id(tokens.index("<|endoftext|>"))
    out.add_eos_token_id(tokens.index("<|im_end|>"))
    out.add_chat_template(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def ids(cut, tokens):
    """The ids of the texts, by a tokenizer made with the library's own constructors."""
    vocab = {token: id for id, token in enumerate(tokens) if not token.startswith("[PAD")}
    merges = [tuple(merge.split()) for merge in MERGES]
    words = Tokenizer(models.BPE(vocab, merges, ignore_merges=cut in ("llama-bpe", "tekken")))
    if cut == "qwen2":
        words.normalizer = normalizers.NFC()
    if SPLITS[cut]:
        first = pre_tokenizers.Split(Regex(SPLITS[cut]), "isolated")
    else:
        first = pre_tokenizers.Digits(individual_digits=True)
    words.pre_tokenizer = pre_tokenizers.Sequence([
        first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not SPLITS[cut])])
    words.decoder = decoders.ByteLevel()
    words.add_special_tokens([AddedToken(word, normalized=False) for word in WORDS])
    words.add_tokens([AddedToken("<tool>", normalized=False)])
    if cut in ("llama-bpe", "tekken"):
        begin = ("<|endoftext|>", tokens.index("<|endoftext|>"))
        words.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[begin])
    return [{"text": text, "ids": words.encode(text, add_special_tokens=False).ids,
             "with_begin": words.encode(text).ids} for text in TEXTS]


def quantised(path, embedding, layers):
    config = dict(hidden_size=256, num_hidden_layers=len(layers), num_attention_heads=2, head_dim=16,
                  num_key_value_heads=1, intermediate_size=32, max_position_embeddings=256,
                  rms_norm_eps=1e-6, rope_parameters=dict(rope_theta=1e6))
    tokens, kinds = vocabulary()
    out = writer(f"{path}.gguf", "qwen3", config)
    add_words(out, "qwen2", tokens, kinds)
    rng, tensors = np.random.default_rng(7), {}

    def add(name, kind, shape):
        if len(shape) == 1:
            array = (1 + 0.3 * rng.standard_normal(shape)).astype(np.float32)
            out.add_tensor(gguf_name(name), array)
        elif kind in (Type.Q4_K, Type.Q5_K, Type.Q6_K):
            blocks = random_blocks(rng, kind, shape)
            out.add_tensor(gguf_name(name), blocks, raw_dtype=kind)
            array = gguf.dequantize(blocks, kind)
        else:
            array = (rng.standard_normal(shape) * 2 / shape[1] ** 0.5).astype(np.float32)
            if kind == Type.F16:
                array = array.astype(np.float16)
                out.add_tensor(gguf_name(name), array)
            else:
                blocks = gguf.quantize(array, kind)
                out.add_tensor(gguf_name(name), blocks, raw_dtype=kind)
                array = gguf.dequantize(blocks, kind)
        tensors[name] = array.astype(np.float32).reshape(shape)

    add("model.embed_tokens.weight", embedding, (288, 256))
    add("model.norm.weight", None, (256,))
    for layer, types in enumerate(layers):
        name = lambda part: f"model.layers.{layer}.{part}.weight"
        for norm, size in [("input_layernorm", 256), ("post_attention_layernorm", 256),
                           ("self_attn.q_norm", 16), ("self_attn.k_norm", 16)]:
            add(name(norm), None, (size,))
        for part, rows in [("q", 32), ("k", 16), ("v", 16)]:
            add(name(f"self_attn.{part}_proj"), types[part], (rows, 256))
        add(name("self_attn.o_proj"), types["o"], (256, 32))
        for part, shape in [("gate", (32, 256)), ("up", (32, 256)), ("down", (256, 32))]:
            add(name(f"mlp.{part}_proj"), types[part], shape)
    finish(out)
    prompt = rng.integers(0, 288, 40).tolist()
    positions = [0, 1, 31, 32, 39]
    logits = qwen3_logits(config, tensors, prompt)[positions]
    digests = {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in tensors.items()}
    golden = dict(made_with=dict(gguf=gguf.__version__ if hasattr(gguf, "__version__") else "",
                                 numpy=np.__version__),
                  tokens=prompt, positions=positions, sha256=digests,
                  logits=[[round(x, 6) for x in row] for row in logits.tolist()])
    (OUT / f"{path}.json").write_text(json.dumps(golden) + "\n")


def words():
    golden = {"qwen2": ids("qwen2", vocabulary()[0])}
    for cut in ("llama-bpe", "tekken", "smollm"):
        tokens, kinds = vocabulary(controls_first=cut == "smollm")
        name = "words.gguf" if cut == "llama-bpe" else f"words_{cut}.gguf"
        out = gguf.GGUFWriter(OUT / name, "llama")
        add_words(out, cut, tokens, kinds)
        finish(out)
        golden[cut] = ids(cut, tokens)
    golden["pieces"] = pieces()
    (OUT / "words.json").write_text(json.dumps(golden) + "\n")


def pieces():
    """A vocabulary of SentencePiece, and the ids of texts by that library."""
    model = io.BytesIO()
    rng = np.random.default_rng(3)
    parts = ["he", "l", "lo", "wor", "ld", "in", "ing", "t", "s", "e", "na", "ï", "ve", " ", " ", " ",
             "  ", ", ", ". ", "1", "2", "(", ")", " = ", "caf", "é", "日本", "語"]
    lines = ["".join(rng.choice(parts, rng.integers(4, 40))) for _ in range(600)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=420,
        byte_fallback=True, split_digits=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
        control_symbols=WORDS[1:], user_defined_symbols=["<tool>"], minloglevel=2)
    made = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    kinds = []
    for id in range(made.vocab_size()):
        if made.is_unknown(id):
            kinds.append(gguf.TokenType.UNKNOWN)
        elif made.is_control(id):
            kinds.append(gguf.TokenType.CONTROL)
        elif made.is_byte(id):
            kinds.append(gguf.TokenType.BYTE)
        elif made.id_to_piece(id) == "<tool>":
            kinds.append(gguf.TokenType.USER_DEFINED)
        else:
            kinds.append(gguf.TokenType.NORMAL)
    out = gguf.GGUFWriter(OUT / "words_pieces.gguf", "llama")
    out.add_tokenizer_model("llama")
    out.add_tokenizer_pre("default")
    out.add_token_list([made.id_to_piece(id) for id in range(made.vocab_size())])
    out.add_token_scores([made.get_score(id) for id in range(made.vocab_size())])
    out.add_token_types(kinds)
    out.add_unk_token_id(made.unk_id())
    out.add_bos_token_id(made.bos_id())
    out.add_eos_token_id(made.eos_id())
    finish(out)
    # What is found before a text is cut begins another text here, in llama.cpp and in tokenizers,
    # and not in SentencePiece.
    texts = [text for text in TEXTS + lines[:20] if "<" not in text]
    return [{"text": text, "ids": made.encode(text),
             "with_begin": [made.bos_id()] + made.encode(text)} for text in texts]


def main():
    OUT.mkdir(exist_ok=True)
    check_reference()
    convert("llama")
    convert("qwen2")
    experts()
    quantised("qwen3", Type.Q6_K, [
        dict(q=Type.Q4_K, k=Type.Q4_K, v=Type.Q6_K, o=Type.Q8_0, gate=Type.Q4_0, up=Type.Q4_0,
             down=Type.Q4_0),
        dict(q=Type.Q8_0, k=Type.Q8_0, v=Type.F16, o=Type.Q4_0, gate=Type.Q8_0, up=Type.Q4_0,
             down=Type.Q8_0),
    ])
    quantised("mixed", Type.Q5_K, [
        dict(q=Type.Q5_K, k=Type.Q4_K, v=Type.Q5_1, o=Type.Q5_0, gate=Type.Q5_0, up=Type.Q4_0,
             down=Type.Q5_1),
        dict(q=Type.Q5_0, k=Type.Q4_0, v=Type.Q8_0, o=Type.Q4_1, gate=Type.Q4_1, up=Type.Q5_1,
             down=Type.Q5_0),
    ])
    words()


if __name__ == "__main__":
    main()
