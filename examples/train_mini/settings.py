"""The shape of a model: config.json of a checkpoint, and the shapes that this example trains (mini, toy)."""
import json
import pathlib


class Settings:
    """text_config of a config.json as attributes, plus what follows from it: which layer has which role."""

    def __init__(self, config):
        """config: the whole config.json as a dict."""
        self.config = config
        self.__dict__.update(config["text_config"])
        self.engram_orders = self.engram_max_ngram_size - 1
        self.engram_columns = self.engram_orders * self.engram_n_heads
        self.encoder_layers = self.kv_source_layer_ids[-1]  # the decoder's global KV comes from this layer's input
        self.layers = [self._role(l) for l in range(self.num_hidden_layers)]

    def _role(self, l):
        ratio = self.compress_ratios[l]
        if ratio == 0:
            return {"ratio": 0, "full": False, "index": False, "source": None}
        source = max(s for s in self.kv_source_layer_ids if s <= l)
        return {"ratio": ratio, "source": source, "full": source == l, "index": l in self.index_source_layer_ids}

    def within_candidates(self, l):
        """Whether layer l selects only inside the blocks that the candidate source published."""
        same = self.layers[l]["source"] == self.layers[self.candidate_source_layer_id]["source"]
        return self.layers[l]["index"] and l > self.candidate_source_layer_id and same


def load(path):
    """Settings from a folder with config.json, or from the file."""
    path = pathlib.Path(path)
    return Settings(json.loads((path / "config.json" if path.is_dir() else path).read_text()))


def primes_from(start):
    """Primes >= start, in order."""
    n = start
    while True:
        if n > 1 and all(n % d for d in range(2, int(n**0.5) + 1)):
            yield n
        n += 1


def engram_primes(layers, start, orders, heads):
    """Bucket counts [layer][order][head]: each prime from `start` on is used once."""
    walk = primes_from(start)
    return [[[next(walk) for _ in range(heads)] for _ in range(orders)] for _ in range(layers)]


def _config(vocabulary, compressed, special, **text):
    """A config.json in the release's shape; text overrides fields of text_config."""
    bos, eos, pad, noise = special
    fields = {
        "model_type": "deepseek_v41_text", "vocab_size": vocabulary, "hidden_size": 256, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 64, "qk_rope_head_dim": 16,
        "q_lora_rank": 96, "o_lora_rank": 64, "o_groups": 2, "moe_intermediate_size": 96, "n_routed_experts": 32,
        "n_shared_experts": 1, "num_experts_per_tok": 4, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
        "norm_topk_prob": True, "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "hidden_act": "silu",
        "rms_norm_eps": 1e-20, "rope_theta": 10000, "compress_rope_theta": 160000,
        "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                         "original_max_position_embeddings": 65536},
        "max_position_embeddings": 8192, "sliding_window": 128, "compress_ratios": [0, 0, 2, 2, 1, 1, 1, 1, 0, 0, 0],
        "kv_source_layer_ids": [2, 3, 4], "index_source_layer_ids": [2, 3, 4, 6], "index_n_heads": 4,
        "index_head_dim": 32, "index_topk": 64, "candidate_source_layer_id": 4, "candidate_topk_blocks": 128,
        "candidate_block_size": 8, "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-06,
        "engram_layer_ids": [1, 3], "engram_vocab_size": 1170, "engram_max_ngram_size": 4, "engram_n_heads": 4,
        "engram_head_dim": 32, "engram_pad_token_id": pad, "engram_compressed_vocab_size": compressed,
        "num_nextn_predict_layers": 3, "dspark_block_size": 5, "dspark_noise_token_id": noise,
        "dspark_target_layer_ids": [5, 6, 7], "dspark_markov_rank": 128, "dspark_n_routed_experts": 32,
        "dspark_num_experts_per_tok": 4, "tie_word_embeddings": False, "attention_bias": False,
        "bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad,
    }
    fields.update(text)
    primes = engram_primes(len(fields["engram_layer_ids"]), fields["engram_vocab_size"],
                           fields["engram_max_ngram_size"] - 1, fields["engram_n_heads"])
    fields["engram_num_embeddings"] = [sum(sum(order) for order in layer) for layer in primes]
    return {
        "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41", "dtype": "bfloat16",
        "bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad, "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32],
                                "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
        "text_config": fields,
    }


TOY = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 32, "qk_rope_head_dim": 8, "q_lora_rank": 32,
       "o_lora_rank": 32, "moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2,
       "sliding_window": 16, "index_topk": 8, "index_n_heads": 2, "candidate_topk_blocks": 4,
       "candidate_block_size": 4, "engram_vocab_size": 100, "engram_n_heads": 2, "dspark_n_routed_experts": 4,
       "dspark_num_experts_per_tok": 2, "dspark_markov_rank": 32}


def mini(vocabulary, compressed, special, toy=False):
    """config.json of the model `mini`, or of a toy of the same structure that a CPU trains in a minute.

    special: ids of (bos, eos, pad, the drafter's noise token).
    """
    return _config(vocabulary, compressed, special, **(TOY if toy else {}))
