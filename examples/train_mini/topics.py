"""Prompts for the teacher, made from words.py by a seeded generator.

`plan(rng)` gives one document to be made: its kind, and a list of turns. A turn is ("user", text) as given, or
("user", None) or ("assistant", None), which the teacher writes. The same seed gives the same plans.
"""

import words as W

SYSTEM = "You are a helpful assistant. You explain things clearly, in simple words."

ASK = {
    "animal": (
        W.ANIMALS,
        [
            "What is a {x}?", "Tell me about {xs}.", "What do {xs} eat?", "Where do {xs} live?",
            "Why do people like {xs}?", "How does a {x} move?",
            "What does a {x} look like?", "Tell me a fun fact about {xs}.", "Is a {x} a good pet?",
            "What is special about {xs}?", "How do {xs} take care of their young?",
            "Are {xs} dangerous?", "How do {xs} sleep?", "Describe a {x} to a child.",
            "What would you do if you saw a {x}?", "How do {xs} help nature?",
        ],
    ),
    "food": (
        W.FOODS,
        [
            "How do you make {x}?", "What does {x} taste like?", "Is {x} healthy?", "What goes well with {x}?",
            "Why do people like {x}?", "Tell me about {x}.",
            "Where does {x} come from?", "Give me a simple recipe with {x}.", "Describe {x} in a few words.",
            "How should I store {x}?", "Can I eat {x} for breakfast?",
        ],
    ),
    "nature": (
        W.NATURE,
        [
            "What is {x}?", "Tell me about {x}.", "Why is {x} important?", "How does {x} work?",
            "Explain {x} to a child.", "Describe {x}.", "What can we learn from {x}?",
            "Where can I find {x}?", "Tell me an interesting fact about {x}.", "What would happen without {x}?",
            "How would you explain {x} in one sentence?", "What causes {x}?",
        ],
    ),
    "body": (
        W.BODY,
        [
            "What is {x}?", "Why is {x} important?", "How does {x} work?", "Tell me about {x}.",
            "How can I take care of {x}?", "Explain {x} to a child.", "What should I know about {x}?",
            "Why do we need {x}?",
        ],
    ),
    "object": (
        W.OBJECTS,
        [
            "What is {x}?", "What is {x} used for?", "How does {x} work?", "Describe {x}.", "Why is {x} useful?",
            "How do I take care of {x}?", "What should I look for when I buy {x}?",
            "Explain {x} to a child.", "What was life like before {x}?", "Tell me about {x}.", "How is {x} made?",
            "Can you name some kinds of {x}?",
        ],
    ),
    "job": (
        W.JOBS,
        [
            "What does a {x} do?", "How can I become a {x}?", "Why is a {x} important?",
            "What does a {x} need to know?", "Is it hard to be a {x}?", "Describe a day in the life of a {x}.",
            "What tools does a {x} use?", "Would you like to be a {x}?", "What makes a good {x}?",
        ],
    ),
    "activity": (
        W.ACTIVITIES,
        [
            "Why is {x} good for you?", "How do I start {x}?", "What do I need for {x}?", "Tell me about {x}.",
            "What do people enjoy about {x}?", "Give me a tip for {x}.", "Is {x} hard?",
            "How can {x} make me happy?", "How can I get better at {x}?", "I want to try {x}. What should I do first?",
        ],
    ),
    "feeling": (
        W.FEELINGS,
        [
            "I feel {x} today.", "Why do people feel {x}?", "What should I do when I feel {x}?",
            "What does it mean to feel {x}?", "My friend feels {x}. How can I help?",
            "I am {x} and I do not know why.", "How can you tell that someone is {x}?",
            "Tell me about a time to feel {x}.",
        ],
    ),
    "idea": (
        W.IDEAS,
        [
            "What is {x}?", "What does {x} mean?", "Why is {x} important?", "Give me an example of {x}.",
            "Explain {x} to a child.", "What do you think about {x}?", "Tell me about {x}.",
            "How can I learn more about {x}?", "Write one sentence about {x}.",
        ],
    ),
    "place": (
        W.PLACES,
        [
            "Tell me about {x}.", "Where is {x}?", "What is {x} known for?", "What can I see in {x}?",
            "Why do people visit {x}?", "What is the weather like in {x}?", "Describe {x}.",
            "What do people eat in {x}?", "I want to visit {x}. What should I know?",
        ],
    ),
    "spot": (
        W.SPOTS,
        [
            "What can I do at {x}?", "Describe {x}.", "I am going to {x} tomorrow. What should I bring?",
            "Why do people go to {x}?", "What can you see at {x}?", "Write about a day at {x}.",
            "What sounds can you hear at {x}?",
        ],
    ),
}
WEIGHTS = {"animal": 16, "food": 9, "nature": 20, "body": 6, "object": 18, "job": 7, "activity": 7, "feeling": 4,
"idea": 12, "place": 6, "spot": 3}

HOWTO = [
    "How do I {x}?", "How can I {x}?", "I want to {x}. Can you help me?", "What is the best way to {x}?",
    "Give me some tips to {x}.", "What do I need to {x}?", "Teach me how to {x}.",
    "Can you explain how to {x}?", "Is it hard to {x}?", "Please tell me how to {x} in three steps.",
]
STORY = [
    "Tell me a story about {h} {e}.", "Write a short story about {h} {e}.", "Tell me a story about {h} {s}.",
    "Please write a story about {h} {s} {e}.", "Write a simple story about {h}.",
    "Can you tell me a bedtime story about {h}?", "Tell me a funny story about {h} {s}.",
    "I would like to hear a story about {h} {e}.", "Write a fairy tale about {h} {e}.",
    "Write a story about {n}, {h} {e}.", "Tell me a short story with {h} and {o}.",
    "Write a story about {n} and {m} {s}.", "Make up a story about {h} and {g}.",
]
WRITE = [
    "Write a short poem about {x}.", "Write a sentence with the word {w}.", "Write three sentences about {x}.",
    "Write a short letter to {n} about {x}.", "Write a thank you note to {n}.",
    "Describe a picture of {x}.", "Give me three words that go with {x}.", "Write a short dialogue about {x}.",
    "Write a message to invite {n} to {p}.", "Make a list of five things about {x}.",
    "Write a birthday wish for {n}.", "Give me a title for a story about {x}.", "Write a riddle about {x}.",
]
COMPARE = [
    "What is the difference between {x} and {y}?", "Which is better, {x} or {y}?", "How are {x} and {y} alike?",
    "Compare {x} and {y}.", "Would you choose {x} or {y}?",
]
TALK = [
    "Hello!", "Hi there.", "Good morning!", "Good evening.", "How are you today?", "Hi, how are you?",
    "What can you do?", "Can you help me?", "I have a question.", "I am bored.",
    "Tell me something interesting.", "Tell me a joke.", "What should I do today?", "I had a long day.",
    "It is raining today.", "I just woke up.", "I cannot sleep.", "I have no idea what to cook.",
    "I have a test tomorrow.", "My name is {n}.", "Hello, I am {n}.", "I like {x}.", "Do you like {x}?",
    "What is your favorite color?", "What is your favorite animal?", "Do you know {n}?",
    "I saw {x} today.", "I bought {x}.", "My friend {n} is coming to visit.", "Today is my birthday.",
    "I am going to {p}.", "I want to learn something new.", "Give me some advice.",
    "Say something nice.", "Ask me a question.", "Let us talk about {x}.", "What do you think about {x}?",
    "I am learning about {x}.", "Thank you for your help.", "Good night.",
]
FOLLOW = [
    "Tell me more.", "Why?", "Can you give me an example?", "What else should I know?",
    "Can you say that in a simpler way?", "Thank you! Is there anything else?", "That is interesting. Why is that?",
    "How do you know?", "Can you explain that again?", "What do you mean?", "Can you say it in one sentence?",
    "And then?", "What would you do?", "What is the most important part?",
    "I did not know that. Tell me more.", "Is that always true?", "How can I learn more?", "Thank you!",
    "Okay, thanks.", "That is great!", "What happens next?", "I do not understand.",
    "Can you make it shorter?", "Do you have a tip for me?", "Why is that important?",
]
FOLLOW_STORY = ["What happens next?", "Tell me another story.", "What did they learn?", "Why did that happen?",
"I liked the story. Thank you!", "Can you give it a title?", "Who is your favorite in the story?", "And then?"]
BEFORE = ["Please tell me: ", "I have a question. ", "Hi! ", "Hello. ", "Can you help me? ", "Quick question: ",
"I am curious. "]

HELD = [W.FOODS, W.NATURE, W.OBJECTS, W.IDEAS]


def plural(word):
    """English plural of an animal's name."""
    odd = {"mouse": "mice", "goose": "geese", "sheep": "sheep", "deer": "deer", "wolf": "wolves", "moose": "moose",
    "salmon": "salmon", "goldfish": "goldfish", "starfish": "starfish",
           "jellyfish": "jellyfish", "octopus": "octopuses", "hippo": "hippos", "rhino": "rhinos"}
    if word in odd:
        return odd[word]
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "sh", "ch")) else "s")


def _hero(rng):
    h = rng.choice(W.HEROES)
    if rng.random() < 0.5:
        return h
    article, rest = h.split(" ", 1)
    trait = rng.choice(W.TRAITS)
    if article in ("a", "an"):
        article = "an" if trait[0] in "aeiou" else "a"
    return f"{article} {trait} {rest}"


def _thing(rng):
    return rng.choice(rng.choice(HELD))


def _animal(x):
    return ("an " if x[0] in "aeiou" else "a ") + x


def _informal(rng, text):
    """Some people write without capitals, or say hello first."""
    r = rng.random()
    if r < 0.08:
        return text[0].lower() + text[1:].rstrip(".?!") if not text.startswith("I ") else text
    if r < 0.14:
        return rng.choice(BEFORE) + text
    if r < 0.18 and "lease" not in text:
        return text[0].upper() + text[1:].rstrip(".?") + ", please" + ("?" if text.endswith("?") else ".")
    return text


def _ask(rng):
    kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    things, forms = ASK[kind]
    x = rng.choice(things)
    form = rng.choice(forms)
    if kind in ("animal", "job") and x[0] in "aeiou":
        form = form.replace(" a {x}", " an {x}")
    return form.format(x=x, xs=plural(x))


def _fill(rng, form):
    w = lambda: rng.choice(W.ANIMALS) if rng.random() < 0.5 else rng.choice(W.JOBS)
    x = _thing(rng) if rng.random() < 0.6 else _animal(rng.choice(W.ANIMALS))
    pick = rng.choice
    return form.format(
        x=x, w=w(), n=pick(W.NAMES), m=pick(W.NAMES), p=pick(W.SPOTS), h=_hero(rng), g=_hero(rng), e=pick(W.EVENTS),
        s=pick(W.SETTINGS), o=pick(W.OBJECTS),
    )  # fmt: skip


def _compare(rng):
    things = rng.choice(HELD + [[_animal(a) for a in W.ANIMALS]])
    x, y = rng.sample(things, 2)
    return rng.choice(COMPARE).format(x=x, y=y)


def plan(rng):
    """One document: {"kind", "turns": [(role, text or None)...]}."""
    r = rng.random()
    if r < 0.46:
        kind, first = "ask", _ask(rng)
    elif r < 0.56:
        kind, first = "howto", rng.choice(HOWTO).format(x=rng.choice(W.TASKS))
    elif r < 0.76:
        kind, first = "story", _fill(rng, rng.choice(STORY))
    elif r < 0.81:
        kind, first = "write", _fill(rng, rng.choice(WRITE))
    elif r < 0.85:
        kind, first = "compare", _compare(rng)
    elif r < 0.92:
        kind, first = "talk", _fill(rng, rng.choice(TALK))
    else:
        kind, first = "free", None
    if first is not None:
        first = _informal(rng, first)
    turns = [("user", first), ("assistant", None)]
    more = {"story": 0.12, "talk": 0.7, "free": 0.3}.get(kind, 0.3)
    while len(turns) < 6 and rng.random() < more:
        follow = rng.choice(FOLLOW_STORY if kind == "story" else FOLLOW)
        if rng.random() < 0.35:
            follow = None
        elif kind != "story" and rng.random() < 0.3:
            follow = _ask(rng)
        turns += [("user", follow), ("assistant", None)]
        more *= 0.6
    return {"kind": kind, "turns": turns}
