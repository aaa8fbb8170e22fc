"""A comparison small enough for tests: forty digits, a few steps, width 16."""

STAGE = {
    "max_steps": 12,
    "learning_rate": 1.0e-2,
    "ssm_learning_rate": 1.0e-3,
    "per_device_train_batch_size": 16,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,
    "max_grad_norm": 0.0,
}
RAW = {
    "task": "digits",
    "train_size": 40,
    "objective": "masked_tokens",
    "mask_ratio": 0.5,
    "source": "test",
    "pretrain": {**STAGE, "max_steps": 8},
    "finetune": STAGE,
    "models": {
        "transformer": {
            "config": {
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "intermediate_size": 32,
                "max_position_embeddings": 64,
                "hidden_dropout_prob": 0.1,
            },
            "source": "test",
        },
        "s4d": {"config": {"hidden_size": 16, "num_hidden_layers": 1, "d_state": 8}, "source": "test"},
    },
}
