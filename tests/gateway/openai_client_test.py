#!/usr/bin/env python3
"""The unmodified `openai` client against a running server.

    openai_client_test.py BASE_URL [MODEL [API_KEY]]        e.g. http://127.0.0.1:8000/v1

Looks at the form of the answers, not at their words: it runs against the test server and against a real cluster alike.
Needs PyPI's `openai`; tests/gateway/openai_client_test.sh makes an environment for it.
"""
import sys

import openai

base = sys.argv[1]
key = sys.argv[3] if len(sys.argv) > 3 else "none"
client = openai.OpenAI(base_url=base, api_key=key, max_retries=0, timeout=120)
model = sys.argv[2] if len(sys.argv) > 2 else client.models.list().data[0].id
passed = 0


def check(condition, what):
    global passed
    if not condition:
        sys.exit(f"FAILED: {what}")
    passed += 1


def usage_adds_up(u):
    check(u.total_tokens == u.prompt_tokens + u.completion_tokens, f"usage sums up: {u}")
    check(u.prompt_tokens > 0 and u.completion_tokens > 0, "usage is counted")
    hit, miss = u.prompt_cache_hit_tokens, u.prompt_cache_miss_tokens
    check(hit + miss == u.prompt_tokens and u.prompt_tokens_details.cached_tokens == hit, "cached tokens sum up")


check(any(m.id == model for m in client.models.list().data), "the model is listed")
check(client.models.retrieve(model).id == model, "the model can be asked for")

messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße 😀"}]
common = {"model": model, "max_tokens": 24, "temperature": 0.0, "seed": 7}

whole = client.chat.completions.create(messages=messages, **common)
check(whole.choices[0].message.role == "assistant", "chat: role")
check(whole.choices[0].finish_reason in ("stop", "length"), "chat: finish reason")
usage_adds_up(whole.usage)
check(whole.usage.completion_tokens <= 24, "chat: max_tokens")

text, finish, usages, roles = "", [], [], 0
with client.chat.completions.create(messages=messages, stream=True, stream_options={"include_usage": True}, **common) as stream:
    for chunk in stream:
        if chunk.usage:
            usages.append(chunk.usage)
            check(chunk.choices == [], "chat stream: the usage chunk has no choices")
            continue
        check(not usages, "chat stream: nothing after the usage chunk")
        roles += chunk.choices[0].delta.role == "assistant"
        text += chunk.choices[0].delta.content or ""
        if chunk.choices[0].finish_reason:
            finish.append(chunk.choices[0].finish_reason)
check(text == whole.choices[0].message.content, "chat stream: same text as in one piece")
check(finish == [whole.choices[0].finish_reason] and roles == 1 and len(usages) == 1, "chat stream: one role, one finish, one usage")
usage_adds_up(usages[0])
check(usages[0].completion_tokens == whole.usage.completion_tokens, "chat stream: same count")

with_logprobs = client.chat.completions.create(messages=messages, logprobs=True, top_logprobs=3, **common)
content = with_logprobs.choices[0].logprobs.content
check(content and all(len(t.top_logprobs) == 3 and t.logprob <= 0 for t in content), "chat: logprobs")

done = client.completions.create(prompt="Once upon", **common)
usage_adds_up(done.usage)
check(done.object == "text_completion", "completion: object")
text = "".join(c.choices[0].text for c in client.completions.create(prompt="Once upon", stream=True, **common))
check(text == done.choices[0].text, "completion stream: same text as in one piece")
ids = client.completions.create(prompt=[0, 100, 101], logprobs=2, **common)
check(len(ids.choices[0].logprobs.tokens) > 0 and ids.usage.prompt_tokens == 3, "completion: token ids and logprobs")

for what, error, call in [
    ("unknown model", openai.NotFoundError, lambda: client.completions.create(model="no-such-model", prompt="x")),
    ("empty messages", openai.BadRequestError, lambda: client.chat.completions.create(model=model, messages=[])),
    ("n = 2", openai.BadRequestError, lambda: client.completions.create(model=model, prompt="x", n=2)),
    ("too long", openai.BadRequestError, lambda: client.completions.create(model=model, prompt="x", max_tokens=1 << 29)),
]:
    try:
        call()
        check(False, f"{what}: accepted")
    except error as e:
        check(e.body["message"] and e.type == "invalid_request_error", f"{what}: error object")

# A stream that is left early does not disturb the next request.
with client.chat.completions.create(messages=messages, stream=True, **common) as stream:
    next(iter(stream))
check(client.completions.create(prompt="x", **common).choices[0].finish_reason in ("stop", "length"), "after a stream was left")
print(f"openai {openai.__version__}: {passed} checks passed against {base}")
