"""Writes a model folder whose greedy reply is a script: what a trained model might say, said by weights that are set by hand.

The layers add nothing, so a token's logits follow from that token alone: its embedding has one direction of its own, and
lm_head has the next piece of the script in that direction. Every piece is one token of the vocabulary. The template's last
token, a line feed, begins the script; behind any token outside the script, and where a constraint forbids the next piece,
the end token is the best. All else is the engine's: prompts, pages, masks, streams.
"""
import json
import os
import struct

FIXTURE = "tiny-random"  # its byte-level tokenizer; ids below 320
HIDDEN = 64


def byte_letters():
    """How a byte-level vocabulary spells each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in plain}
    for b in range(256):
        if b not in letters:
            letters[b] = chr(256 + len(letters) - len(plain))
    return letters


def bf16(values):
    return b"".join(struct.pack("<f", v)[2:] for v in values)


def make(out, fixtures, script, template=None, control=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")):
    """@script: pieces, each once; those of @control, <think> and </think> are control tokens. @template: Jinja; None: the fixture's."""
    source = os.path.join(fixtures, FIXTURE)
    with open(os.path.join(source, "tokenizer.json")) as f:
        tokenizer = json.load(f)
    with open(os.path.join(source, "config.json")) as f:
        config = json.load(f)
    with open(os.path.join(source, "tokenizer_config.json")) as f:
        names = json.load(f)
    with open(os.path.join(source, "generation_config.json")) as f:
        generation = f.read()
    vocab, added = tokenizer["model"]["vocab"], tokenizer["added_tokens"]
    ids = {a["content"]: a["id"] for a in added}
    n = max([*vocab.values(), *ids.values()]) + 1
    for tag in control:
        added.append(dict(added[0], id=n, content=tag, special=False))
        ids[tag] = n
        n += 1
    letters = byte_letters()
    for piece in script:
        if piece not in ids:
            spelled = "".join(letters[b] for b in piece.encode())
            ids[piece] = vocab.setdefault(spelled, n)
            n += ids[piece] == n
    chain = [vocab[letters[10]], *(ids[p] for p in script), ids["<|im_end|>"]]
    assert len(set(chain)) == len(chain) < HIDDEN, "a piece stands twice, or there are too many"

    direction = {token: i + 1 for i, token in enumerate(chain[:-1])}  # 0: of all others
    following = dict(zip(chain, chain[1:]))
    rows = {token: [0.0] * HIDDEN for token in range(n)}
    head = {token: [0.0] * HIDDEN for token in range(n)}
    for token, row in rows.items():
        row[direction.get(token, 0)] = 1.0
    head[ids["<|im_end|>"]] = [0.125] * HIDDEN
    for token, after in following.items():
        head[after][direction[token]] = 4.0
    config.update(vocab_size=n, hidden_size=HIDDEN, num_hidden_layers=1, layer_types=["full_attention"], max_position_embeddings=2048,
                  num_attention_heads=2, num_key_value_heads=1, head_dim=32, intermediate_size=64)
    flat = lambda table: [x for token in range(n) for x in table[token]]  # noqa: E731
    zeros = lambda *shape: (list(shape), bytes(2 * shape[0] * (shape[1] if len(shape) > 1 else 1)))  # noqa: E731
    ones = lambda k: ([k], bf16([1.0] * k))  # noqa: E731
    layer = "model.layers.0."
    tensors = {
        "model.embed_tokens.weight": ([n, HIDDEN], bf16(flat(rows))),
        "lm_head.weight": ([n, HIDDEN], bf16(flat(head))),
        "model.norm.weight": ones(HIDDEN),
        layer + "input_layernorm.weight": ones(HIDDEN),
        layer + "post_attention_layernorm.weight": ones(HIDDEN),
        layer + "self_attn.q_proj.weight": zeros(64, HIDDEN),
        layer + "self_attn.k_proj.weight": zeros(32, HIDDEN),
        layer + "self_attn.v_proj.weight": zeros(32, HIDDEN),
        layer + "self_attn.q_norm.weight": ones(32),
        layer + "self_attn.k_norm.weight": ones(32),
        layer + "self_attn.o_proj.weight": zeros(HIDDEN, 64),
        layer + "mlp.gate_proj.weight": zeros(64, HIDDEN),
        layer + "mlp.up_proj.weight": zeros(64, HIDDEN),
        layer + "mlp.down_proj.weight": zeros(HIDDEN, 64),
    }
    header, data = {}, b""
    for name, (shape, content) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if template is not None:
        names["chat_template"] = template
    names["model_max_length"] = 2048
    os.makedirs(out)
    for name, content in (("tokenizer.json", json.dumps(tokenizer)), ("config.json", json.dumps(config)),
                          ("tokenizer_config.json", json.dumps(names)), ("generation_config.json", generation)):
        with open(os.path.join(out, name), "w") as f:
            f.write(content)
    with open(os.path.join(out, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def template_form(fixtures, tokenizer_dir, form):
    """The chat template @form of the Qwen3 family, made from the first one by the edits in the fixtures."""
    with open(os.path.join(tokenizer_dir, "tokenizer_config.json")) as f:
        source = json.load(f)["chat_template"]
    with open(os.path.join(fixtures, "template", "forms.json")) as f:
        edits = json.load(f)[form]
    for begin, end, text in edits:
        at = source.index(begin)
        source = source[:at] + text + source[source.index(end, at + len(begin)):]
    return source
