"""Hugging Face architectures as data: a tiny configuration of each, and what to feed it.

Dropouts are on wherever the architecture has them, stochastic depth included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Feed = Callable[[Any], dict[str, Any]]
"""config -> the keyword arguments of one batch."""

BATCH, LENGTH, VOCABULARY, PIXELS = 2, 10, 99, 32


@dataclass(frozen=True)
class Architecture:
    """One row: ``model`` and ``config`` are names in ``transformers``."""

    name: str
    model: str
    config: str
    feed: Feed
    settings: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""
    """The error class by name, when the architecture cannot be captured."""


def tokens(config: Any) -> dict[str, Any]:
    """Token ids that are also the labels: language models."""
    ids = torch.randint(5, VOCABULARY, (BATCH, LENGTH))
    return {"input_ids": ids, "labels": ids.clone()}


def masked_tokens(config: Any) -> dict[str, Any]:
    """Token ids with a padding mask, and labels some of which are ignored."""
    batch = tokens(config)
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[1, -3:] = 0
    batch["labels"][mask == 0] = -100
    return {**batch, "attention_mask": mask}


def detected_tokens(config: Any) -> dict[str, Any]:
    """Token ids and, for each, whether it was replaced: ELECTRA's discriminator."""
    labels = torch.randint(0, 2, (BATCH, LENGTH))
    return {"input_ids": torch.randint(5, VOCABULARY, (BATCH, LENGTH)), "labels": labels}


def images(config: Any) -> dict[str, Any]:
    """Images and their classes."""
    labels = torch.randint(0, 2, (BATCH,))
    return {"pixel_values": torch.randn(BATCH, 3, PIXELS, PIXELS), "labels": labels}


def maps(config: Any) -> dict[str, Any]:
    """Images and a class for each pixel."""
    labels = torch.randint(0, 2, (BATCH, PIXELS, PIXELS))
    return {"pixel_values": torch.randn(BATCH, 3, PIXELS, PIXELS), "labels": labels}


def pairs(config: Any) -> dict[str, Any]:
    """Images with their captions."""
    return {
        "input_ids": torch.randint(5, VOCABULARY, (BATCH, LENGTH)),
        "pixel_values": torch.randn(BATCH, 3, PIXELS, PIXELS),
        "return_loss": True,
    }


def spectrograms(config: Any) -> dict[str, Any]:
    """Spectrograms and their transcripts."""
    frames = 2 * config.max_source_positions
    return {
        "input_features": torch.randn(BATCH, config.num_mel_bins, frames),
        "labels": torch.randint(5, VOCABULARY, (BATCH, LENGTH)),
    }


def waves(config: Any) -> dict[str, Any]:
    """Raw audio and its class."""
    return {"input_values": torch.randn(BATCH, 400), "labels": torch.randint(0, 2, (BATCH,))}


_LLAMA = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "attention_dropout": 0.1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
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
_VIT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": PIXELS,
    "patch_size": 8,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
_CLIP = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "attention_dropout": 0.1,
}
_GPT2 = {
    "vocab_size": VOCABULARY,
    "n_positions": 32,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_BART = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
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
_MIXTRAL = {**_LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2}

ARCHITECTURES = (
    # --- decoders -------------------------------------------------------------------------------
    Architecture("gpt2", "GPT2LMHeadModel", "GPT2Config", tokens, _GPT2),
    Architecture("llama", "LlamaForCausalLM", "LlamaConfig", tokens, _LLAMA),
    Architecture(
        "mistral", "MistralForCausalLM", "MistralConfig", tokens, {**_LLAMA, "sliding_window": 4}
    ),
    Architecture("qwen2", "Qwen2ForCausalLM", "Qwen2Config", tokens, _LLAMA),
    Architecture("qwen3", "Qwen3ForCausalLM", "Qwen3Config", tokens, {**_LLAMA, "head_dim": 8}),
    Architecture("gemma", "GemmaForCausalLM", "GemmaConfig", tokens, {**_LLAMA, "head_dim": 8}),
    Architecture("phi", "PhiForCausalLM", "PhiConfig", tokens, {**_LLAMA, "resid_pdrop": 0.1}),
    Architecture(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        tokens,
        {**_LLAMA, "hidden_dropout": 0.1, "num_key_value_heads": 4},
    ),
    Architecture(
        "gpt_neo",
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        tokens,
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "max_position_embeddings": 32,
            "resid_dropout": 0.1,
            "embed_dropout": 0.1,
            "attention_dropout": 0.1,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    Architecture(
        "opt",
        "OPTForCausalLM",
        "OPTConfig",
        tokens,
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "ffn_dim": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 32,
            "word_embed_proj_dim": 32,
            "dropout": 0.1,
            "attention_dropout": 0.1,
        },
    ),
    Architecture(
        "bloom",
        "BloomForCausalLM",
        "BloomConfig",
        tokens,
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "n_layer": 2,
            "n_head": 4,
            "hidden_dropout": 0.1,
            "attention_dropout": 0.1,
        },
    ),
    Architecture(
        "falcon",
        "FalconForCausalLM",
        "FalconConfig",
        tokens,
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "hidden_dropout": 0.1,
            "attention_dropout": 0.1,
        },
    ),
    Architecture("mixtral", "MixtralForCausalLM", "MixtralConfig", tokens, _MIXTRAL),
    Architecture(
        "mamba",
        "MambaForCausalLM",
        "MambaConfig",
        tokens,
        {"vocab_size": VOCABULARY, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 2},
    ),
    # --- encoders -------------------------------------------------------------------------------
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
    ),
    Architecture(
        "xlnet",
        "XLNetLMHeadModel",
        "XLNetConfig",
        tokens,
        {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
    ),
    # --- encoder and decoder --------------------------------------------------------------------
    Architecture(
        "t5",
        "T5ForConditionalGeneration",
        "T5Config",
        tokens,
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
    ),
    Architecture("bart", "BartForConditionalGeneration", "BartConfig", masked_tokens, _BART),
    # --- images ---------------------------------------------------------------------------------
    Architecture("vit", "ViTForImageClassification", "ViTConfig", images, _VIT),
    Architecture("deit", "DeiTForImageClassification", "DeiTConfig", images, _VIT),
    Architecture(
        "beit",
        "BeitForImageClassification",
        "BeitConfig",
        images,
        {**_VIT, "drop_path_rate": 0.2},
    ),
    Architecture(
        "dinov2",
        "Dinov2ForImageClassification",
        "Dinov2Config",
        images,
        {**_VIT, "drop_path_rate": 0.2},
    ),
    Architecture(
        "swin",
        "SwinForImageClassification",
        "SwinConfig",
        images,
        {
            "image_size": PIXELS,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "drop_path_rate": 0.2,
        },
    ),
    Architecture(
        "resnet",
        "ResNetForImageClassification",
        "ResNetConfig",
        images,
        {
            "embedding_size": 8,
            "hidden_sizes": [16, 32],
            "depths": [1, 2],
            "layer_type": "bottleneck",
        },
    ),
    Architecture(
        "mobilenet_v2",
        "MobileNetV2ForImageClassification",
        "MobileNetV2Config",
        images,
        {"image_size": PIXELS, "depth_multiplier": 0.25, "classifier_dropout_prob": 0.2},
    ),
    Architecture(
        "convnext",
        "ConvNextForImageClassification",
        "ConvNextConfig",
        images,
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1], "drop_path_rate": 0.2},
    ),
    Architecture(
        "segformer",
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        maps,
        {
            "hidden_sizes": [8, 16],
            "depths": [1, 2],
            "num_encoder_blocks": 2,
            "num_attention_heads": [1, 2],
            "sr_ratios": [2, 1],
            "decoder_hidden_size": 16,
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "mlp_ratios": [2, 2],
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "drop_path_rate": 0.2,
        },
    ),
    # --- several senses -------------------------------------------------------------------------
    Architecture(
        "clip",
        "CLIPModel",
        "CLIPConfig",
        pairs,
        {
            "text_config": {
                **_CLIP,
                "vocab_size": VOCABULARY,
                "max_position_embeddings": 16,
                "eos_token_id": VOCABULARY - 1,
                "bos_token_id": 1,
                "pad_token_id": 0,
            },
            "vision_config": {**_CLIP, "image_size": PIXELS, "patch_size": 8},
            "projection_dim": 16,
        },
    ),
    Architecture(
        "whisper",
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        spectrograms,
        {**_BART, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 16},
    ),
    Architecture(
        "wav2vec2",
        "Wav2Vec2ForSequenceClassification",
        "Wav2Vec2Config",
        waves,
        {
            **_BERT,
            "conv_dim": [16, 16],
            "conv_stride": [5, 4],
            "conv_kernel": [10, 8],
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
            "classifier_proj_size": 16,
            "hidden_dropout": 0.1,
            "attention_dropout": 0.1,
            "activation_dropout": 0.1,
        },
    ),
)
