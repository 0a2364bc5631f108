"""Which generated documents are kept: finished, plain English, not too short or long, not repeating themselves."""

import re

ALLOWED = re.compile(r"[A-Za-z0-9\s.,;:!?'\"()\[\]&%$/*#+=<>_°é-]*")
REFUSAL = re.compile(r"\b(as an ai|ai language model|i'm sorry, but|i am sorry, but|smollm|hugging ?face|cannot assist)", re.I)
PLAIN = str.maketrans({"\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": " - ", "\u2026": "...", "\u00a0": " "})


def repeats(text):
    """Share of the text's five-word runs that came before."""
    words = text.lower().split()
    runs = [tuple(words[i : i + 5]) for i in range(len(words) - 4)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


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
        if repeats(text) > 0.12:
            return "repetition"
        if re.search(r"(.)\1{5}", text):
            return "run"
    answers = [m["content"] for m in messages[1::2]]
    if len(set(answers)) < len(answers):
        return "same answer twice"
    return None
