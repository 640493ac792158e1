"""Configs: one `get_config()` a file; installed as `tf_dpadaptive.configs`."""
