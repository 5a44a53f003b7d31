#!/usr/bin/env bash
# transformers 4.57.6, torch 2.13.0: Whisper's `return_token_timestamps` with `use_cache=False`, which is the setting for
# a model whose decoder keeps no caches. Guessed before the run: the tokens are the same, and so are their times.
#
# Seen: the tokens are the same. There are more times than tokens, without a word: 91 for 14 tokens here. All but a few
# of the first 14, which a program would pair with the tokens, are other ones. Each step without caches gives attention
# weights for all tokens so far, and the rows of all steps are put one after the other as if each were one new token
# (1 + 2 + ... + 13 rows in place of 13). Rows taken from the last step alone give the times seen with caches.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT; cd "$folder"
python3 -m venv env
env/bin/pip install --quiet --disable-pip-version-check numpy==2.4.6 torch==2.13.0 transformers==4.57.6
HF_HUB_OFFLINE=1 env/bin/python - <<'PY'
import torch
import transformers

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
torch.manual_seed(0)
TOKENS = 12
config = transformers.WhisperConfig(
    vocab_size=60, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
    encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=80, max_source_positions=100, max_target_positions=64,
    init_std=0.5, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3, suppress_tokens=None,
    begin_suppress_tokens=None, median_filter_width=3,
)
model = transformers.WhisperForConditionalGeneration(config).eval()
settings = model.generation_config
settings.alignment_heads = [[0, 0], [1, 1]]
settings.no_timestamps_token_id = 4
settings.is_multilingual = False
sound = torch.randn(1, 80, 200)


def times(**more):
    found = model.generate(
        sound, return_token_timestamps=True, return_dict_in_generate=True, do_sample=False,
        max_new_tokens=TOKENS, min_new_tokens=TOKENS, **more,
    )
    return found["sequences"][0].tolist(), [round(one, 2) for one in found["token_timestamps"][0].tolist()]


print("transformers", transformers.__version__, "| torch", torch.__version__)
tokens, cached = times(use_cache=True)
same, plain = times(use_cache=False)
print("tokens", tokens)
print("times with caches   ", cached)
print("times without caches", plain[: len(tokens)], f"and {len(plain) - len(tokens)} more")
assert tokens == same and len(cached) == len(tokens) and max(cached) > 0
rows = len(tokens) - 1
assert len(plain) == rows * (rows + 1) // 2 and plain[: len(tokens)] != cached, plain

# The rows of the last step alone, in the place of all steps': the times with caches again.
extract = model._extract_token_timestamps


def of_the_last_step(outputs, *given, **named):
    outputs.cross_attentions = outputs.cross_attentions[-1:]
    return extract(outputs, *given, **named)


model._extract_token_timestamps = of_the_last_step
again, mended = times(use_cache=False)
print("from the last step  ", mended)
assert again == tokens and mended == cached, mended
PY
