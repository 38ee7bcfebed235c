/* The mean surprise of all tokens of the text but the first. logits has room for V. */
static double loss_of(struct ra_decoder *decoder, const float *weights, int64_t V, float *logits)
{
    double sum = 0;
    check(ra_decoder_prompt(decoder, weights, 1, text, logits), ra_decoder_error(decoder));
    for (int i = 1; i < N; i++) {
        sum += surprise(V, logits, text[i]);
        check(ra_decoder_add(decoder, weights, 1, &text[i], logits), ra_decoder_error(decoder));
    }
    return sum / (N - 1);
}
