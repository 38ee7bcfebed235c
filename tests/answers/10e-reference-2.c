static void fill(struct ra_model_config *config)
{
    config->vocabulary = 512, config->dim = 64, config->depth = 3;
    config->heads = 8, config->key_heads = 2, config->head_dim = 16;
    config->hidden = 160, config->feed = RA_FEED_SWIGLU, config->feed_bias = false;
    config->norm = RA_NORM_RMS, config->norm_eps = 1e-5;
    config->rotary_theta = 50000, config->rotary_scale = 4;
    config->tied = true;
    for (int l = 0; l < config->depth; l++)
        config->lookback[l] = 32;
}
