"""The sections of the config tree, one module each; `disttrain.config.run_config` joins them."""
