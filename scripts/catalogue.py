#!/usr/bin/env python3
"""Makes config/models.toml from two public tables and the few rules below.

    pip download --no-deps litellm genai-prices
    python3 scripts/catalogue.py litellm-*.whl genai_prices-*.whl > config/models.toml

Windows and limits come from LiteLLM (MIT). Prices come from genai-prices (MIT), which has the makers' own, with the day
from which each holds; else from LiteLLM. Tokenizer family, binding, reasoning and cache rules are in this script
(`docs/protocols.md` 1.5, 3.5, 7; `docs/estimates.md` 1.3, 2), because no public file has them.
"""

import datetime
import json
import re
import sys
import types
import zipfile

DATA = "litellm/model_prices_and_context_window_backup.json"

# LiteLLM's provider, the maker in the headings of the catalogue, the prefix of its models' names in LiteLLM.
MAKERS = [
    ("anthropic", "Anthropic", ""),
    ("openai", "OpenAI", ""),
    ("gemini", "Google", "gemini/"),
    ("deepseek", "DeepSeek", "deepseek/"),
    ("xai", "xAI", "xai/"),
    ("mistral", "Mistral", "mistral/"),
    ("moonshot", "Moonshot", "moonshot/"),
    ("zai", "Z.ai", "zai/"),
    ("minimax", "MiniMax", "minimax/"),
    ("dashscope", "Alibaba", "dashscope/"),
    ("meta_llama", "Meta", "meta_llama/"),
    ("meta", "Meta", "meta/"),
    ("xiaomi_mimo", "Xiaomi", "xiaomi_mimo/"),
    ("cohere_chat", "Cohere", ""),
]

# The same makers in genai-prices.
PRICED_BY = {
    "Anthropic": "anthropic",
    "OpenAI": "openai",
    "Google": "google",
    "DeepSeek": "deepseek",
    "xAI": "x-ai",
    "Mistral": "mistral",
    "Moonshot": "moonshotai",
    "Z.ai": "zai",
    "MiniMax": "minimax",
    "Meta": "meta",
    "Cohere": "cohere",
}

# Models that are not chat models, whose price LiteLLM has wrong, or that another company resells: those are listed under
# their maker.
EXCLUDED = re.compile(
    r"^ft:gpt-4o-2024-11-20$|audio|-tts|lyria|learnlm|container|realtime|voxtral|^zai-|^mistral/|robotics|streaming"
    r"|beta|experimental|gv2|labs-|vibe-cli|-omni-|^gemini-exp|^gemini-gemma|muse-voice|muse-image"
)
RESOLD = {"dashscope": re.compile(r"^(deepseek|glm|kimi)"), "mistral": re.compile(r"^(zai|glm|deepseek)")}

# What OpenAI's models cost beside tokens ("Pricing", developers.openai.com, 2026-11): a search of files in Responses, and
# each call of the models of Chat Completions that always search the web ("Web search").
FILE_SEARCH = 0.0025
ALWAYS_SEARCHES = {"gpt-5-search-api": 0.01, "gpt-4o-search-preview": 0.025, "gpt-4o-mini-search-preview": 0.025}

# What LiteLLM does not have yet. GPT-6.2: search, batch and priority ("fast"); the price page had no flex for it, and what
# its ultrafast costs was not found ("Pricing", developers.openai.com, 2026-11-18). Claude 5.2: fast at twice the price
# ("Fast mode", Anthropic's documentation and Google's model card, 2026-11), batch at half ("Batch processing").
TERMS = {
    r"gpt-6\.2-": {"search": 0.01, "tiers": {"priority": 2.0, "batch": 0.5}},
    r"claude-(fable|mythos)-5-2$": {"tiers": {"batch": 0.5, "fast": 2.0}},
    r"claude-mythos-preview$": {"tiers": {"batch": 0.5}},
    # "Pricing", Gemini API, until it ended in March 2026.
    r"gemini-3-pro$": {
        "search": 0.014,
        "tiers": {"batch": 0.5},
        "long": {"above": 200_000, "input": 4.0, "output": 18.0, "cache_read": 0.4, "cache_write": 4.0},
    },
}

# Google bills Gemini up to 2.5 by the prompt that searched, later ones by the search ("Pricing", Gemini API, 2026-11). What
# a day or a month has free is not taken off.
SEARCH_PROMPT = 0.035

def long_gpt(input_price, output_price):
    """OpenAI's price from GPT-6.1 on: above 272,000 tokens, input costs twice as much, and output half as much again."""
    read, write = input_price / 20, input_price * 1.25
    base = {"input": input_price, "output": output_price, "cache_read": read, "cache_write": write}
    doubled = {"input": 2 * input_price, "output": 1.5 * output_price, "cache_read": 2 * read, "cache_write": 2 * write}
    return {**base, "long": {"above": 272_000, **doubled}}


# Models that LiteLLM does not list (retired, or open weights that people serve themselves):
# window, max output, prices (input, output, cache read, cache write).
BY_HAND = {
    "Anthropic": {
        "claude-opus-4-1": (200_000, 32_000, (15, 75, 1.5, 18.75)),
        "claude-opus-4-0": (200_000, 32_000, (15, 75, 1.5, 18.75)),
        "claude-sonnet-4-0": (200_000, 64_000, (3, 15, 0.3, 3.75)),
        "claude-opus-4": (200_000, 32_000, (15, 75, 1.5, 18.75)),
        "claude-sonnet-4": (200_000, 64_000, (3, 15, 0.3, 3.75)),
        "claude-3-7-sonnet": (200_000, 64_000, (3, 15, 0.3, 3.75)),
        "claude-3-5-sonnet": (200_000, 8_192, (3, 15, 0.3, 3.75)),
        "claude-3-5-haiku": (200_000, 8_192, (0.8, 4, 0.08, 1)),
        "claude-3-opus": (200_000, 4_096, (15, 75, 1.5, 18.75)),
        "claude-3-haiku": (200_000, 4_096, (0.25, 1.25, 0.03, 0.3)),
        "claude-fable-5-2": (1_000_000, 128_000, None),
        "claude-mythos-5-2": (1_000_000, 128_000, None),
    },
    "OpenAI": {
        "gpt-oss-120b": (131_072, 131_072, None),
        "gpt-oss-20b": (131_072, 131_072, None),
        "gpt-oss": (131_072, 131_072, None),
        "codex-mini-latest": (200_000, 100_000, (1.5, 6, 0.375, 1.5)),
        "gpt-5.3-codex-spark": (128_000, 128_000, None),
        "gpt-4.5-preview": (128_000, 16_384, (75, 150, 37.5, 75)),
        "gpt-5.5-cyber": (272_000, 128_000, None),
        # Input and output from OpenAI's model pages (November 2026); the rest in the ratios of GPT-6.1.
        "gpt-6.2-sol": (922_000, 128_000, long_gpt(2, 10)),
        "gpt-6.2-astra": (922_000, 128_000, long_gpt(8, 40)),
        "o1-mini": (128_000, 65_536, (1.1, 4.4, 0.55, 1.1)),
        "o1-preview": (128_000, 32_768, (15, 60, 7.5, 15)),
    },
    "Google": {
        "gemini-3-pro": (1_048_576, 65_536, (2, 12, 0.2, 2)),
        "gemini-3-flash": (1_048_576, 65_536, (0.5, 3, 0.05, 0.5)),
        "gemini-2.0-flash": (1_048_576, 8_192, (0.1, 0.4, 0.025, 0.1)),
        "gemini-2.0-flash-lite": (1_048_576, 8_192, (0.075, 0.3, 0.01875, 0.075)),
        "gemini-1.5-pro": (2_097_152, 8_192, (1.25, 5, 0.3125, 1.25)),
        "gemini-1.5-flash": (1_048_576, 8_192, (0.075, 0.3, 0.01875, 0.075)),
    },
    "xAI": {
        "grok-4": (256_000, 256_000, (3, 15, 0.75, 3)),
        "grok-4-1-fast": (2_000_000, 30_000, (0.2, 0.5, 0.05, 0.2)),
        "grok-4-fast": (2_000_000, 30_000, (0.2, 0.5, 0.05, 0.2)),
        "grok-3": (131_072, 131_072, (3, 15, 0.75, 3)),
        "grok-3-mini": (131_072, 131_072, (0.3, 0.5, 0.07, 0.3)),
    },
    "Moonshot": {
        # "Pricing", platform.moonshot.ai (November 2025), as models.dev has it; genai-prices has a reseller's.
        "kimi-k2": (262_144, 262_144, (0.6, 2.5, 0.15, 0.6)),
        "kimi-k2-0711-preview": (131_072, 131_072, (0.6, 2.5, 0.15, 0.6)),
        "kimi-k2.7-code-highspeed": (262_144, 262_144, None),
        "kimi-latest": (131_072, 131_072, None),
    },
    # pi-ai 1.5.2 (2026-11-10) for the windows; the prices are genai-prices'.
    "MiniMax": {
        "minimax-m2.7": (204_800, 131_072, None),
        "minimax-m2.7-highspeed": (204_800, 131_072, None),
        "minimax-m3.1-flash": (1_000_000, 131_072, None),
    },
    "DeepSeek": {"deepseek-v4.1-flash": (1_000_000, 384_000, None)},
    "Z.ai": {
        "glm-5.3-flashx": (1_000_000, 128_000, None),
        # pi-ai 1.5.2 (2026-11-10), as no other table has it.
        "glm-5-turbo": (200_000, 128_000, (1.2, 4, 0.24, 1.2)),
    },
    "Alibaba": {
        "qwen3": (40_960, 32_768, None),
        "qwen3.5": (262_144, 65_536, None),
        "qwen-3-coder": (262_144, 65_536, None),
        "qwen3-coder": (262_144, 65_536, None),
        "qwen2.5": (32_768, 8_192, None),
        "qwen2.5-coder": (32_768, 8_192, None),
        "qwq": (131_072, 32_768, None),
        # pi-ai 1.5.2 (2026-11-10).
        "qwen3.6-plus": (1_000_000, 65_536, None),
        "qwen3.6-flash": (1_000_000, 65_536, None),
    },
    "Mistral": {
        "mistral-medium-2505": (131_072, 131_072, None),
        "mistral-medium-2508": (131_072, 131_072, None),
        "devstral-2512": (262_144, 32_768, None),
        "mistral-small-2506": (128_000, 8_191, (0.1, 0.3, 0.01, 0.1)),
        "mistral-small-3.2": (131_072, 32_768, None),
        "mistral-small-3-2": (131_072, 32_768, None),
    },
    "Perplexity": {
        "sonar": (128_000, 8_000, (1, 1, 1, 1)),
        "sonar-pro": (200_000, 8_000, (3, 15, 3, 3)),
        "sonar-reasoning": (128_000, 8_000, (1, 5, 1, 1)),
        "sonar-reasoning-pro": (128_000, 8_000, (2, 8, 2, 2)),
    },
    "Meta": {
        # pi-ai 1.5.2 (2026-11-10), as no other table has it.
        "muse-ember-1.0": (1_048_576, 131_072, (0.1, 0.5, 0.004, 0.1)),
        "llama-4-maverick": (1_000_000, 16_384, None),
        "llama-4-scout": (10_000_000, 16_384, None),
        "llama-3.3": (131_072, 8_192, None),
        "llama-3.2": (131_072, 8_192, None),
        "llama-3.1": (131_072, 8_192, None),
        "llama3.3": (131_072, 8_192, None),
        "llama3.2": (131_072, 8_192, None),
        "llama3.1": (131_072, 8_192, None),
    },
    "Hugging Face": {
        "smollm3": (65_536, 32_768, None),
        "smollm3-3b": (65_536, 32_768, None),
        "smollm2": (8_192, 8_192, None),
        "smollm2-135m": (8_192, 8_192, None),
        "smollm2-360m": (8_192, 8_192, None),
        "smollm2-1.7b": (8_192, 8_192, None),
    },
}

# What input may fill, where LiteLLM has the whole window with the output, or another provider's: OpenAI's model pages
# ("922,000 max input tokens"), and models.dev (2026-07-02) for the rest.
WINDOWS = {
    r"gpt-5\.[45](-pro)?$": 922_000,
    r"gpt-5\.1-codex|gpt-5-pro$|gpt-5\.6-cyber$": 272_000,
    r"minimax-m2\.[15]": 204_800,
    r"minimax-m2$": 196_608,
    r"glm-4\.5v$": 64_000,
}

# Names that LiteLLM has as they were before they came to mean another model: Alibaba's "Models"; DeepSeek's "Models &
# Pricing" (from 2026-04-24 until they end).
NOW_MEANS = {
    "qwen-plus": "qwen-plus-latest",
    "qwen-turbo": "qwen-turbo-latest",
    "deepseek-chat": "deepseek-v4-flash",
    "deepseek-reasoner": "deepseek-v4-flash",
}

# Models whose price in genai-prices is another one: a reseller's, the one that a name meant before it meant a newer
# model (Mistral's model cards, 2026-03 and 2026-04; xAI's list of models), or that of what was fine-tuned.
PRICED_BY_LITELLM = re.compile(
    r"ft:|deepseek-v3\.2$|kimi-k2$|grok-code-fast"
    r"|magistral-(medium|small)-latest$|mistral-(large|medium)-latest$|mistral-medium$"
)

# Other names of the same model at the same price, by what follows its name: those that the makers' lists of models have, or
# had before they ended, where LiteLLM has them no more; what OpenRouter calls two efforts and one mode.
ALIASES = {
    "claude-3-5-haiku": "-20241022 -latest",
    "claude-3-5-sonnet": "-20240620 -20241022 -latest",
    "claude-3-7-sonnet": "-20250219 -latest :thinking",
    "claude-3-haiku": "-20240307",
    "claude-3-opus": "-20240229 -latest",
    "claude-opus-4": "-20250514 -20250522",
    "claude-sonnet-4": "-20250514 -20250522",
    "claude-opus-4-1": "-20250805",
    "claude-opus-4-5": "-20251101",
    "claude-sonnet-4-5": "-20250929",
    "claude-sonnet-4-6": "-20260217",
    "claude-haiku-4-5": "-20251001",
    "gpt-4.5-preview": "-2025-02-27",
    "o1-mini": "-2024-09-12",
    "o1-preview": "-2024-09-12",
    "o3-mini": "-high",
    "o4-mini": "-high",
    "gemini-1.5-flash": "-001 -002 -latest",
    "gemini-1.5-pro": "-001 -002 -latest",
    "gemini-2.0-flash": "-001 -exp",
    "gemini-2.0-flash-lite": "-001",
    "gemini-2.5-flash": "-preview-09-2025",
    "gemini-2.5-flash-lite": "-preview-06-17 -preview-09-2025",
    "gemini-2.5-pro": "-preview-03-25 -preview-05-06 -preview-06-05",
    "gemini-3-pro": "-preview",
    "gemini-3-flash": "-preview",
    "kimi-k2": "-0905-preview -thinking",
    "grok-4": "-0709 -latest",
    "grok-4-1-fast": "-reasoning -non-reasoning",
    "grok-4-fast": "-reasoning -non-reasoning",
    "grok-4.20": "-beta -beta-latest -beta-0309 -beta-reasoning -beta-non-reasoning -beta-0309-reasoning"
    " -beta-0309-non-reasoning -beta-latest-reasoning -beta-latest-non-reasoning",
    "grok-4.20-multi-agent": "-beta-0309 -beta-latest",
    "grok-3": "-latest -beta",
    "grok-3-mini": "-latest -beta",
}

# Models whose weights are open, so that hosts serve them under names of their own.
OPEN = re.compile(
    r"gpt-oss|gemma|llama|smollm|deepseek-[vr]|kimi-k[12]|glm-\d|minimax-m|mimo-|command-r|c4ai|qwq"
    r"|qwen(-3-coder|2\.5|3|3\.5)(-coder|-vl|-next)?$|qwen.*\d+b|devstral|magistral-small|ministral|mistral-small-\d"
)

# By the beginning of a name, for models newer than this file: the tokenizer is certain, the rest is a guess.
FAMILIES = {
    "claude": (200_000, 64_000),
    "gpt-": (128_000, 16_384),
    "gpt-5": (272_000, 128_000),
    "gpt-6": (272_000, 128_000),
    "gpt-4": (8_192, 4_096),
    "gpt-4o": (128_000, 16_384),
    "gpt-4.1": (1_047_576, 32_768),
    "gpt-3.5": (16_385, 4_096),
    "chatgpt": (128_000, 16_384),
    "codex": (200_000, 100_000),
    "o1": (200_000, 100_000),
    "o3": (200_000, 100_000),
    "o4": (200_000, 100_000),
    "gemini": (1_048_576, 65_536),
    "gemma": (131_072, 8_192),
    "deepseek": (131_072, 8_192),
    "grok": (131_072, 32_768),
    "mistral": (131_072, 32_768),
    "kimi": (262_144, 32_768),
    "glm": (131_072, 65_536),
    "minimax": (196_608, 32_768),
    "qwen": (32_768, 8_192),
    "llama": (131_072, 8_192),
    "smollm": (8_192, 8_192),
}


def claude_generation(name):
    """Model line and version, e.g. ("opus", 4.7)."""
    new = re.match(r"claude-([a-z]+)-(\d+)(?:-(\d{1,2})(?!\d))?", name)
    if new:
        return new[1], float(f"{new[2]}.{new[3] or 0}")
    old = re.match(r"claude-(\d+)(?:-(\d))?-([a-z]+)", name)
    return (old[3], float(f"{old[1]}.{old[2] or 0}")) if old else ("", 99.0)


def gpt_version(name):
    found = re.match(r"gpt-(\d+(?:\.\d+)?)", name)
    return float(found[1]) if found else 0.0


def family(name):
    if name.startswith("claude"):
        line, version = claude_generation(name)
        return "claude-new" if version >= 5 or (line == "opus" and version >= 4.7) else "claude"
    if re.match(r"gpt-3|gpt-4($|-)", name):
        return "cl100k"
    if re.match(r"gpt|o\d|chatgpt|chat-latest|codex|computer-use", name):
        return "o200k"
    return "gemini" if re.match(r"gemini|gemma", name) else "other"


def binding(name):
    if name.startswith("claude"):
        line, version = claude_generation(name)
        least = {"fable": 5.1, "mythos": 5.1, "opus": 5.5, "sonnet": 5.5, "haiku": 5.5}
        return "prefix" if version >= least.get(line, 0) else "free"
    reasons = re.match(r"o\d|codex", name) or (gpt_version(name) >= 5 and "chat" not in name)
    return "prefix" if reasons else "free"


def keeps_reasoning(name):
    if name.startswith("claude"):
        line, version = claude_generation(name)
        return version >= {"opus": 4.5, "sonnet": 4.6}.get(line, 5)
    return gpt_version(name) >= 5.6 or name.startswith("grok-4")


def drops_steered(name):
    """GPT-5.5 dropped a turn's reasoning if text came with tool results, in 7 of 7 recorded cases."""
    return gpt_version(name) == 5.5


def reads_reasoning(name):
    return not re.match(r"gemini-[12]\.", name)


def plain_results(name):
    return bool(re.match(r"gemini-(1\.|2\.0)", name))


def tool_offering(name):
    """Tokens of the instructions on how to call tools, if recorded first calls differ from the family."""
    if re.match(r"o\d", name):
        return 0
    if name.startswith("gpt-oss"):
        return 12
    if not name.startswith("claude"):
        return None
    line, version = claude_generation(name)
    # Of Sonnet 5 the provider says 354, with the 7 of every prompt.
    return 305 if version < 4.5 else {("opus", 4.7): 645, ("sonnet", 5): 347}.get((line, version))


def prompt_overhead(name):
    """Tokens of the system message that a model's template puts before every prompt."""
    return 60 if name.startswith("gpt-oss") else None


def cache(maker, name):
    """The smallest prefix that is cached, in tokens, and how long it lives unused, in seconds."""
    if maker == "Anthropic" or name.startswith("claude"):
        line, version = claude_generation(name)
        if version >= 5 and (line, version) != ("sonnet", 5.0):
            return 512, 300
        return {("opus", 4.7): 2048, ("opus", 4.6): 4096, ("opus", 4.5): 4096, ("haiku", 4.5): 4096}.get(
            (line, version), 1024
        ), 300
    if family(name) in ("o200k", "cl100k"):
        return 1024, 1800 if gpt_version(name) >= 5.6 else 300
    if family(name) == "gemini":
        return (2048 if "2.5" in name else 4096), 300
    return (64, 3600) if name.startswith("deepseek") else (0, 300)


def number(value):
    return f"{round(value, 6):g}"


def toml(value):
    """A value of the catalogue as TOML in one line."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {toml(one)}' for key, one in value.items() if one)} }}"
    if isinstance(value, list):
        return f"[{', '.join(toml(one) for one in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value:_}" if isinstance(value, int) else number(value)


def line(maker, listed_as, window, output, price, aliases=(), retires=None):
    name = listed_as.removeprefix("ft:")
    least, ttl = cache(maker, name)
    window = next((fits for start, fits in WINDOWS.items() if re.match(start, name)), window)
    fields = [f"aliases = {toml(sorted(aliases))}"] if aliases else []
    if OPEN.match(name):
        fields.append("open = true")
    fields += [f"window = {window:_}", f"max_output = {output:_}", f'family = "{family(name)}"']
    if binding(name) == "prefix":
        fields.append('binding = "prefix"')
    if keeps_reasoning(name):
        fields.append("keeps_reasoning = true")
    if not reads_reasoning(name):
        fields.append("reads_reasoning = false")
    if drops_steered(name):
        fields.append("drops_steered = true")
    if plain_results(name):
        fields.append("plain_results = true")
    if tool_offering(name) is not None:
        fields.append(f"tool_offering = {tool_offering(name)}")
    if prompt_overhead(name):
        fields.append(f"prompt_overhead = {prompt_overhead(name)}")
    fields += [f"cache_min = {least}", f"cache_ttl_s = {ttl}"]
    if price:
        fields.append(f"price = {toml(price)}")
    if retires:
        fields.append(f'retires = "{retires}"')
    return f'"{listed_as}" = {{ {", ".join(fields)} }}'


def with_defaults(prices):
    """Without a price of its own, reading from the cache and writing to it cost what input costs."""
    input_price, output_price, read, write = prices
    return {
        "input": input_price,
        "output": output_price,
        "cache_read": read or input_price,
        "cache_write": write or input_price,
    }


# The tiers, as LiteLLM ends its keys.
TIERS = {"priority": "priority", "flex": "flex", "batches": "batch", "ultrafast": "ultrafast"}


def terms(entry, base):
    """What else decides about a price, as LiteLLM has it: tiers as factors, searches, audio."""
    tiers = {}
    for suffix, tier in TIERS.items():
        factor, read = (
            entry.get(f"{key}_{suffix}") and price and round(entry[f"{key}_{suffix}"] * 1e6 / price, 4)
            for key, price in (("input_cost_per_token", base[0]), ("cache_read_input_token_cost", base[2]))
        )
        if factor:
            # Published prices are rounded.
            apart = read and abs(read / factor - 1) > 0.1
            tiers[tier] = {"other": factor, "cache_read": read} if apart else factor
    fast = entry.get("provider_specific_entry", {}).get("fast")
    if fast:
        tiers["fast"] = float(fast)
    search = entry.get("search_context_cost_per_query", {}).get("search_context_size_medium")
    audio = entry.get("input_cost_per_audio_token")
    cached = entry.get("cache_read_input_audio_token_cost")
    found = {"audio": audio and audio * 1e6, "cached_audio": cached and cached * 1e6, "search": search, "tiers": tiers}
    # Google's price page names another price of audio where there is one.
    if not audio and entry["litellm_provider"] == "gemini" and entry.get("supports_audio_input"):
        found["audio_as_text"] = True
    if audio and not cached and audio * 1e6 == base[0]:
        found = {**found, "audio": None, "audio_as_text": True}
    return found


def add_terms(maker, name, price):
    """What this script knows beside both tables."""
    if name.startswith("deep-research-"):
        price.pop("search", None)  # With Gemini up to 2.5 by the prompt, which is many calls.
    if re.match(r"gemini-([12]\.5-(pro|flash|flash-lite)$|2\.0-flash$)", name):
        price.pop("search", None)
        price["search_prompt"] = SEARCH_PROMPT
    if name in ALWAYS_SEARCHES:
        price.pop("search", None)
        price["call"] = ALWAYS_SEARCHES[name]
    for names, more in TERMS.items():
        if re.match(names, name):
            price.update(more)
    if maker == "OpenAI" and price.get("search"):
        price["file_search"] = FILE_SEARCH


def regional(name):
    """Claude from 4.5 on costs a tenth more where a call has to stay in a region ("Pricing", Anthropic's documentation)."""
    return 1.1 if name.startswith("claude") and claude_generation(name)[1] >= 4.5 else None


def price(entry):
    """LiteLLM's price; `long`: that of a prompt above a number of tokens, or a list of such."""
    tiers = entry.get("tiered_pricing") or []
    if tiers and "input_cost_per_token" not in entry:
        for tier in tiers:
            start = int(tier["range"][0]) // 1000
            suffix = f"_above_{start}k_tokens" if start else ""
            entry = {**entry, **{key + suffix: value for key, value in tier.items() if key.endswith(("_token", "_cost"))}}

    def at(suffix=""):
        keys = ("input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost", "cache_creation_input_token_cost")
        return [entry.get(key + suffix) and entry[key + suffix] * 1e6 for key in keys]

    base = at()
    if not base[0] or not base[1]:
        return None
    found = {**with_defaults(base), **terms(entry, base)}
    steps = [re.fullmatch(r"input_cost_per_token_above_(\d+)k_tokens", key) for key in entry]
    long = []
    for above in sorted(int(step[1]) for step in steps if step):
        rates = with_defaults([value or base[at] for at, value in enumerate(at(f"_above_{above}k_tokens"))])
        long.append({"above": above * 1000, **rates})
    if long:
        found["long"] = long[0] if len(long) == 1 else long
    return found


def makers_prices(wheel, today):
    """The prices in genai-prices by maker and model name: those that hold today at peak hours; and when others hold."""
    # It wants an HTTP client, which nothing here uses.
    sys.modules["httpx2"] = types.ModuleType("httpx2")
    sys.modules["httpx2"].__getattr__ = lambda name: type(name, (), {})
    sys.path.insert(0, wheel)
    from genai_prices.data import providers

    def of_today(prices):
        """The price of today at peak hours, that of other hours, the peak hours, the day of a change, and its price."""
        if not isinstance(prices, list):
            return prices, None, [], None, None
        now, hours, change = prices[0].prices, [], None
        for one in prices[1:]:
            starts = getattr(one.constraint, "start_date", None)
            if starts and starts <= today:
                now, hours = one.prices, []
            elif starts:
                change = one
            else:
                hours.append(one)
        if not hours:
            return now, None, [], change and change.constraint.start_date, change and change.prices
        spans = [[f"{at:%H:%M}" for at in (one.constraint.start_time, one.constraint.end_time)] for one in hours]
        return hours[0].prices, now, spans, None, None

    def both(value):
        """The price, the number of tokens above which it is another one, and that one."""
        tiers = getattr(value, "tiers", None)
        if not tiers:
            return (value and float(value), None, None)
        return float(value.base), tiers[0].start, float(tiers[0].price)

    def found(model):
        now, off_peak, spans, day, then = of_today(model.prices)
        if spans and len(spans) != 2:
            return None  # DeepSeek's discount at night, which has ended
        parts = [both(getattr(now, f"{key}_mtok", None)) for key in ("input", "output", "cache_read", "cache_write")]
        if not parts[0][0] or not parts[1][0]:
            return None
        priced = with_defaults([base for base, _, _ in parts])
        above = next((above for _, above, _ in parts if above), None)
        if above:
            long = with_defaults([long or base for base, _, long in parts])
            priced["long"] = {"above": above, **long}
        searches = getattr(now, "web_searches_kcount", None)
        if searches:
            priced["search"] = float(searches) / 1e3
        if off_peak:
            priced["off_peak"] = {"factor": float(off_peak.input_mtok / now.input_mtok), "peak": spans}
        if then:
            keys = ("input", "output", "cache_read", "cache_write")
            later = with_defaults([both(getattr(then, f"{key}_mtok", None))[0] for key in keys])
            priced["change"] = {"from": f"{day}", **later}
        return priced

    by_maker = {provider.id: provider.models for provider in providers}

    def look(maker, name):
        models = by_maker.get(PRICED_BY.get(maker), [])
        exact = [model for model in models if model.id.lower() == name]
        fitting = exact or [model for model in models if model.match.is_match(name)]
        return found(fitting[0]) if fitting else None

    return look


def models_of(data, provider, prefix):
    """The models of a provider, and the names that are aliases of each."""
    found, aliases = {}, {}
    for key, entry in data.items():
        if entry.get("litellm_provider") != provider or entry.get("mode") not in ("chat", "responses"):
            continue
        name = key.removeprefix(prefix).lower()
        window = entry.get("max_input_tokens") or entry.get("max_tokens")
        output = entry.get("max_output_tokens") or entry.get("max_tokens")
        resold = RESOLD.get(provider)
        if not window or not output or EXCLUDED.search(name) or (resold and resold.match(name)) or "/" in name:
            continue
        found[name] = (int(window), int(output), price(entry))
    found.update((name, found[other]) for name, other in NOW_MEANS.items() if name in found)
    # A name with a date is left out if the name without it has the same values.
    for name in list(found):
        plain = re.sub(r"-(\d{8}|\d{4}-\d{2}-\d{2}|latest)$", "", name)
        if plain != name and found.get(plain) == found[name]:
            del found[name]
            aliases.setdefault(plain, set()).add(name)
    return found, aliases


def retirement(data, prefix, names):
    """The day on which a model is no longer offered, if LiteLLM has the same for all its names that it dates."""
    days = {data.get(prefix + name, {}).get("deprecation_date") for name in names} - {None}
    return days.pop() if len(days) == 1 else None


def main():
    data = json.loads(zipfile.ZipFile(sys.argv[1]).read(DATA))
    today = datetime.date.today()
    makers_price = makers_prices(sys.argv[2], today)
    version, other_version = (path.split("/")[-1].split("-")[1] for path in sys.argv[1:3])
    print(f"""# The model catalogue. Made by scripts/catalogue.py; do not edit. If you know a value better, set it in your
# configuration ([model.NAME]), or change the script.
#
# Sources: LiteLLM {version} ({DATA}), MIT,
#   Copyright (c) 2023 Berri AI; prices of genai-prices {other_version}, MIT, Copyright (c) 2025 Pydantic Services;
#   retired and open models, tokenizer families, binding, reasoning and cache rules by hand. Date: {today}.
#
# aliases: other names of the same model, at the same price; open: what hosts write after the name of open
# weights (sizes, formats, dates) is the same model, at another price; window: most input tokens; max_output: most output tokens; family: tokenizer; binding: "prefix" if
# reasoning becomes invalid once anything before it changes; keeps_reasoning: the reasoning of earlier
# turns stays in the context; reads_reasoning = false: none is read, even in a tool loop; drops_steered:
# a turn's reasoning is dropped if text comes with tool results; plain_results: tool results cost no more
# than their text and their tool's name; tool_offering: what the first tool costs beside itself;
# prompt_overhead: what the model's template puts before every prompt;
# cache_min: smallest cached prefix; cache_ttl_s: how long it lives unused; price: US dollars per million
# tokens at the standard tier and at peak hours; long: what all tokens of a prompt above so many cost;
# audio, cached_audio: its input; audio_as_text: it costs what text costs; search: a search of the web, US dollars; search_prompt: all searches of one prompt;
# file_search: a search of uploaded files; call: each call beside its tokens; tiers, regional, off_peak: how many times as
# much a call costs at this tier, if it has to stay in a region, outside the peak hours (Monday to Friday,
# UTC); change: what it costs from a day on; retires: the day from which it is no longer offered.

[models]""")
    makers = dict.fromkeys([maker for _, maker, _ in MAKERS] + list(BY_HAND))
    for maker in makers:
        found, aliases = dict(BY_HAND.get(maker, {})), {}
        for provider, name, prefix in MAKERS:
            if name == maker:
                listed, named = models_of(data, provider, prefix)
                found.update(listed)
                aliases.update(named)
        print(f"\n# {maker}")
        for name in sorted(found):
            window, output, listed = found[name]
            if isinstance(listed, tuple):
                listed = with_defaults(listed)
            # What the makers' own table does not say holds as LiteLLM says it, except a step in the length of a prompt:
            # there it would not say that there is none.
            own = None if PRICED_BY_LITELLM.match(name) else makers_price(maker, NOW_MEANS.get(name, name))
            # Reading from the cache at the price of input: that table says nothing of the cache.
            if own and listed and own["cache_read"] == own["input"] == round(listed["input"], 9):
                own["cache_read"] = listed["cache_read"]
            kept = {key: value for key, value in (listed or {}).items() if key != "long" or not own}
            price = {**kept, **(own or {}), "regional": regional(name)} if own or listed else None
            if price:
                add_terms(maker, name, price)
            others = {name + rest for rest in ALIASES.get(name, "").split()} | aliases.get(name, set())
            prefixes = [prefix for _, listed_by, prefix in MAKERS if listed_by == maker]
            days = [retirement(data, prefix, {name, *others}) for prefix in prefixes]
            retires = next((day for day in days if day), None)
            print(line(maker, name, window, output, price, others - set(found), retires))
    print("\n# By the beginning of a name, for models newer than this file: the family is certain, the rest is a guess.")
    print("[families]")
    for start, (window, output) in FAMILIES.items():
        print(line("", start, window, output, None))


main()
