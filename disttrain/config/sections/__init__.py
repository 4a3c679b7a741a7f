"""The sections of the config tree, one module each; `disttrain.config.config_tree` joins them."""
