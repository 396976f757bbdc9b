"""Encoders, and encoders with decoders, of text."""

from __future__ import annotations

from .huggingface import VOCABULARY, Architecture, detected_tokens, masked_tokens, tokens

_BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "pad_token_id": 0,
}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation_dropout": 0.1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}
_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}

ENCODERS = (
    Architecture("bert", "BertForMaskedLM", "BertConfig", masked_tokens, _BERT),
    Architecture("roberta", "RobertaForMaskedLM", "RobertaConfig", masked_tokens, _BERT),
    Architecture(
        "distilbert",
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        masked_tokens,
        {
            "vocab_size": VOCABULARY,
            "dim": 32,
            "hidden_dim": 48,
            "n_layers": 2,
            "n_heads": 4,
            "max_position_embeddings": 32,
        },
    ),
    Architecture(
        "albert",
        "AlbertForMaskedLM",
        "AlbertConfig",
        masked_tokens,
        {**_BERT, "embedding_size": 16, "classifier_dropout_prob": 0.1},
    ),
    Architecture(
        "electra",
        "ElectraForPreTraining",
        "ElectraConfig",
        detected_tokens,
        {**_BERT, "embedding_size": 16},
    ),
    Architecture(
        "deberta_v2",
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        masked_tokens,
        {
            **_BERT,
            "relative_attention": True,
            "position_buckets": 4,
            "pos_att_type": ["p2c", "c2p"],
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
        },
        since="5.23",
    ),
    Architecture(
        "longformer",
        "LongformerForMaskedLM",
        "LongformerConfig",
        masked_tokens,
        {**_BERT, "attention_window": 4},
        by_value=True,
    ),
    Architecture(
        "xlnet",
        "XLNetLMHeadModel",
        "XLNetConfig",
        tokens,
        {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
    ),
    Architecture(
        "t5",
        "T5ForConditionalGeneration",
        "T5Config",
        tokens,
        _T5,
    ),
    Architecture(
        "switch_transformers",
        "SwitchTransformersForConditionalGeneration",
        "SwitchTransformersConfig",
        tokens,
        {**_T5, "num_experts": 4},
        by_value=True,
    ),
    Architecture(
        "bart",
        "BartForConditionalGeneration",
        "BartConfig",
        masked_tokens,
        _BART,
        since="5.23",
    ),
)
