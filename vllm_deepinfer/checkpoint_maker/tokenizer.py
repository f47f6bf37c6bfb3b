"""The tiny model's tokenizer: 512 ids, byte-level, with every token of the chat format.

The trained file is part of the package, so checkpoints do not depend on the version of the
training library. ``python -m vllm_deepinfer.checkpoint_maker.tokenizer`` writes it anew.
Source: V4.1 specification, section 7.
"""

from __future__ import annotations

from vllm_deepinfer.checkpoint_maker.corpus import CORPUS
from vllm_deepinfer.models.deepseek_v41.presets import TINY_TOKENIZER

VOCAB_SIZE = 512

CONTROL_TOKENS = (  # ids 0, 1, 2
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
)
NOISE_TOKEN = "<｜noise｜>"
# The last ids. They are not "special" in the library's sense: the parsers need to see them in the
# decoded text.
FORMAT_TOKENS = (
    NOISE_TOKEN,
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜System｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
    "<｜deepseek_image｜>",
)


def train_tokenizer() -> str:
    """Train on the corpus and return the content of ``tokenizer.json``."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(FORMAT_TOKENS),
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS.splitlines(keepends=True), trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in FORMAT_TOKENS])
    found = tokenizer.get_vocab_size(with_added_tokens=True)
    if found != VOCAB_SIZE:
        raise AssertionError(f"the corpus yields {found} ids, not {VOCAB_SIZE}; lengthen it")
    return tokenizer.to_str(pretty=True)


if __name__ == "__main__":
    TINY_TOKENIZER.write_text(train_tokenizer() + "\n", encoding="utf-8")
