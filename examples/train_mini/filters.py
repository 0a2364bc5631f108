"""Which generated documents are kept: finished, plain English, not too short or long, not repeating themselves."""

import re

ALLOWED = re.compile(r"[A-Za-z0-9\s.,;:!?'\"()\[\]&%$/*#+=<>_°é-]*")
REFUSAL = re.compile(
    r"\b(as an ai|ai language model|i'm sorry, but|i am sorry, but|smollm|hugging ?face|cannot assist)", re.I
)
PLAIN = str.maketrans({"\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": " - ",
"\u2026": "...", "\u00a0": " "})


def repeats(text):
    """Whether the text goes in circles: four-word runs that come again, one word all over, few different words."""
    words = [w.strip(".,;:!?\"'") for w in text.lower().split()]
    runs = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    if runs and len(set(runs)) < 0.95 * len(runs):
        return True
    long = [w for w in words if len(w) > 3]
    if len(long) >= 12 and max(long.count(w) for w in set(long)) > 0.2 * len(long):
        return True
    return len(text) < 600 and len(set(words)) < 0.5 * len(words)


def clean(text):
    """Typographic characters as plain ones, no trailing spaces, at most one empty line."""
    text = text.translate(PLAIN)
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def reason(kind, messages):
    """None if the conversation is kept, else why not. Cleans the contents in place."""
    if len(messages) < 2 or len(messages) % 2:
        return "unfinished"
    for i, m in enumerate(messages):
        if m["role"] != ("user", "assistant")[i % 2]:
            return "roles"
        m["content"] = text = clean(m["content"])
        if not ALLOWED.fullmatch(text):
            return "characters"
        if m["role"] == "user":
            if not 2 <= len(text) <= 300:
                return "question length"
            if len(text.split("\n")) > 3:
                return "question shape"
            continue
        if REFUSAL.search(text):
            return "refusal"
        if not (80 if kind == "story" else 12) <= len(text) <= 2500:
            return "answer length"
        if text[-1] not in ".!?\"')":
            return "answer end"
        if repeats(text):
            return "repetition"
        if re.search(r"(.)\1{5}", text):
            return "run"
    answers = [m["content"] for m in messages[1::2]]
    if len(set(answers)) < len(answers):
        return "same answer twice"
    return None
