/* abi: what programs of this minor version were compiled with: the declarations of the installed
 * headers. See tests/abi, which wrote it.
 */
#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
struct ra_span {
    int64_t first, stride, count;
};
struct ra_span ra_span_chunk(int64_t length, int64_t chunks, int64_t chunk);
enum ra_type { RA_FLOAT32, RA_FLOAT16, RA_BFLOAT16, RA_BOOL };
enum ra_layout_kind { RA_CONTIGUOUS, RA_STRIPED, RA_ZIGZAG, RA_DEALT };
enum ra_head_map { RA_GROUPED, RA_INTERLEAVED };
enum ra_transport { RA_ANY_TRANSPORT, RA_PEER_COPIES, RA_DEVICE_LINK, RA_HOST_LINK };
enum ra_tile_kind { RA_VECTOR_TILE, RA_PLAIN_TILE };
enum ra_method {
    RA_RING,
    RA_GATHERED_KEYS,
    RA_EXCHANGED_HEADS,
    RA_HYBRID,
    RA_DOUBLE_RING,
    RA_AUTO_METHOD
};
struct ra_event;
struct ra_backend;
struct ra_config {
    size_t size;
    int64_t batch;
    int64_t queries;
    int64_t keys;
    int64_t heads;
    int64_t key_heads;
    int64_t dim;
    enum ra_type type;
    bool has_mask;
    bool forward_only;
    bool causal;
    bool local_keys;
    int64_t lookback;
    enum ra_head_map head_map;
    double scale;
    double softcap;
    enum ra_layout_kind layout;
    int64_t bucket;
    int ring_size;
    int64_t tile_queries, tile_keys;
    double timeout;
    void (*observe)(void *observer, const struct ra_event *event);
    void *observer;
    const struct ra_backend *device;
    enum ra_transport transport;
    bool deterministic;
    int initialised;
    enum ra_tile_kind tile;
    int threads;
    bool caller_workspace;
    int64_t max_slices;
    int64_t max_rows;
    int64_t dim_value;
    enum ra_method method;
    int group;
    int inner;
    int reserved;
};
int64_t ra_heads_key(enum ra_head_map map, int64_t H, int64_t G, int64_t h);
struct ra_run {
    int64_t first, count, row;
    int rank;
};
struct ra_layout_list {
    int64_t count, spans, rows;
    struct ra_run *run;
    int64_t *span;
    int64_t *first;
};
struct ra_layout {
    enum ra_layout_kind kind;
    int ranks;
    int64_t length;
    int64_t stripes;
    const struct ra_layout_list *list;
};
int64_t ra_layout_stripes(int ranks, int64_t length, int64_t bucket);
struct ra_layout ra_layout_of(const struct ra_config *config, int64_t length);
int64_t ra_layout_spans(struct ra_layout layout);
struct ra_span ra_layout_span(struct ra_layout layout, int rank, int64_t s);
int64_t ra_layout_span_at(struct ra_layout layout, int rank, int64_t a, int64_t *offset);
int64_t ra_layout_rows_before(struct ra_layout layout, int rank, int64_t s);
int64_t ra_layout_rows(struct ra_layout layout, int rank);
int64_t ra_layout_most_rows(struct ra_layout layout);
int64_t ra_layout_position(struct ra_layout layout, int rank, int64_t a);
int ra_layout_find(struct ra_layout layout, int64_t position, int64_t *row);
int ra_layout_run(struct ra_layout layout, int64_t position, int64_t *end);
void ra_layout_shard(struct ra_layout layout, int rank, int64_t row_bytes, const void *whole,
                     void *local);
void ra_layout_unshard(struct ra_layout layout, int rank, int64_t row_bytes, const void *local,
                       void *whole);
int64_t ra_layout_alike(struct ra_layout layout, int rank, int64_t s);
enum ra_message {
    RA_KEYS,
    RA_GRADIENTS,
    RA_GRADIENTS_RETURN,
    RA_CALL,
    RA_ROWS,
    RA_FAILURE,
    RA_OUTER_KEYS,
    RA_OUTER_GRADIENTS,
    RA_OUTER_GRADIENTS_RETURN,
    RA_OUTER_CALL,
    RA_MESSAGES
};
struct ra_link {
    int rank, size;
    int sharing;
    int64_t bytes;
    bool device_memory;
    void *self;
    bool (*send)(void *self, enum ra_message message, int hop, int distance, const void *from,
                 int64_t bytes);
    bool (*receive)(void *self, enum ra_message message, int hop, int distance, void *into,
                    int64_t bytes);
    bool (*poll)(void *self);
    bool (*wait)(void *self, enum ra_message message);
    void (*fail)(void *self, const char *reason);
    const char *(*error)(void *self);
    bool (*arrival)(void *self, enum ra_message message, int *hop, double *start, double *end);
    void (*set_timeout)(void *self, double seconds);
    bool (*close)(void *self);
    int *in_call;
    void (*cancel)(void *self);
};
enum ra_event_kind { RA_EVENT_WORK, RA_EVENT_WAIT, RA_EVENT_KEYS, RA_EVENT_GRADIENTS };
struct ra_event {
    enum ra_event_kind kind;
    bool backward;
    int hop;
    double start, end;
};
enum ra_call_kind { RA_CALL_FORWARD, RA_CALL_BACKWARD, RA_CALL_SCATTER, RA_CALL_GATHER };
struct ra_call {
    int64_t number, kind, ring, heads, slices;
};
struct ra_slice {
    int64_t q0, q1, k0, k1, lo, hi;
};
int64_t ra_slices_documents(const int64_t *bounds, int64_t count, int64_t back, int64_t ahead,
                            struct ra_slice *slices);
int64_t ra_slices_window(int64_t queries, int64_t keys, int64_t back, int64_t ahead,
                         struct ra_slice *slices);
int64_t ra_slices_prefix(const int64_t *bounds, int64_t count, const int64_t *prefixes,
                         struct ra_slice *slices);
int64_t ra_slices_chunks(int64_t length, int64_t chunk, struct ra_slice *slices);
int64_t ra_slices_first(const int64_t *bounds, int64_t count, int64_t first, int64_t back,
                        struct ra_slice *slices);
int64_t ra_slices_pairs(const int64_t *query_bounds, const int64_t *key_bounds, int64_t count,
                        struct ra_slice *slices);
int64_t ra_slices_answers(const int64_t *bounds, int64_t count, struct ra_slice *slices);
void ra_slices_places(const int64_t *bounds, int64_t count, int64_t rows, int64_t *positions);
enum ra_status {
    RA_OK,
    RA_INVALID,
    RA_OUT_OF_MEMORY,
    RA_DISAGREEMENT,
    RA_LOST,
    RA_DEVICE,
    RA_CANCELLED
};
bool ra_slice_is_empty(const struct ra_slice *slice);
struct ra_slice ra_slice_tighten(const struct ra_slice *slice);
int64_t ra_slice_pairs(const struct ra_slice *slice);
struct ra_slices {
    int64_t count;
    struct ra_slice *slice;
    int64_t *reach;
};
int64_t ra_slices_storage(int64_t most);
enum ra_status ra_slices_read(struct ra_slices *slices, const struct ra_slice *given, int64_t count,
                              int64_t queries, int64_t keys, void *storage, char error[320]);
int64_t ra_slices_next(const struct ra_slices *slices, int64_t from, int64_t first, int64_t last);
int64_t ra_slices_seen(const struct ra_slices *slices, int64_t first, int64_t end);
int64_t ra_type_bytes(enum ra_type type);
struct ra_tensor {
    void *data;
    enum ra_type type;
    int64_t batch, row, head;
};
struct ra_tensor ra_tensor_bnhd(void *data, enum ra_type type, int64_t rows, int64_t heads,
                                int64_t dim);
struct ra_tensor ra_tensor_bhnd(void *data, enum ra_type type, int64_t rows, int64_t heads,
                                int64_t dim);
struct ra_tensor ra_tensor_bhn(void *data, int64_t rows, int64_t heads);
struct ra_tensor ra_tensor_bn(void *data, int64_t rows);
struct ra_tensor ra_tensor_h(void *data);
const char *ra_version(void);
const char *ra_status_text(enum ra_status status);
void ra_config_init(struct ra_config *config, size_t size);
enum ra_status ra_config_set(struct ra_config *config, const char *field, double value,
                             char error[320]);
enum ra_status ra_config_get(const struct ra_config *config, const char *field, double *value,
                             char error[320]);
struct ra_plan;
enum ra_status ra_plan_create(struct ra_plan **plan, const struct ra_config *config,
                              const struct ra_link *link, char error[320]);
void ra_plan_cancel(struct ra_plan *plan);
void ra_plan_destroy(struct ra_plan *plan);
const char *ra_plan_error(const struct ra_plan *plan);
void ra_plan_config(const struct ra_plan *plan, struct ra_config *config, size_t size);
int ra_plan_rank(const struct ra_plan *plan);
int ra_plan_ranks(const struct ra_plan *plan);
enum ra_side { RA_QUERY_SIDE, RA_KEY_SIDE };
int64_t ra_plan_rows(const struct ra_plan *plan, enum ra_side side);
int64_t ra_plan_position(const struct ra_plan *plan, enum ra_side side, int64_t row);
void ra_plan_positions(const struct ra_plan *plan, enum ra_side side, int64_t *positions);
struct ra_layout ra_plan_layout(const struct ra_plan *plan, enum ra_side side);
int64_t ra_plan_bytes(const struct ra_plan *plan);
int64_t ra_plan_workspace_bytes(const struct ra_plan *plan);
enum ra_status ra_plan_set_workspace(struct ra_plan *plan, void *workspace, int64_t bytes);
enum ra_deal { RA_DEAL_LAYOUT, RA_DEAL_DOCUMENTS };
enum ra_status ra_plan_set_slices(struct ra_plan *plan, const struct ra_slice *slices,
                                  int64_t count, enum ra_deal deal);
enum ra_status ra_plan_set_slices_like(struct ra_plan *plan, const struct ra_slice *slices,
                                       int64_t count, const struct ra_plan *other);
int64_t ra_plan_work(const struct ra_plan *plan, int rank);
int ra_plan_hops(const struct ra_plan *plan);
struct ra_hop {
    int distance;
    int origin;
    int64_t multiply_adds;
    int64_t tiles_skipped;
    int64_t messages;
    int64_t bytes;
};
enum ra_status ra_plan_hop(struct ra_plan *plan, int rank, int step, bool backward,
                           struct ra_hop *hop);
int64_t ra_plan_describe(struct ra_plan *plan, int rank, char *text, size_t size);
struct ra_arrays {
    size_t size;
    struct ra_tensor q;
    struct ra_tensor k, v;
    struct ra_tensor mask;
    struct ra_tensor o, lse;
    struct ra_tensor d_out;
    struct ra_tensor dq;
    struct ra_tensor dk, dv;
    struct ra_tensor d_lse;
    struct ra_tensor sink;
    struct ra_tensor d_sink;
    struct ra_tensor slopes;
    struct ra_tensor largest;
};
enum ra_status ra_forward(struct ra_plan *plan, const struct ra_arrays *arrays);
enum ra_status ra_backward(struct ra_plan *plan, const struct ra_arrays *arrays);
enum ra_status ra_wait(struct ra_plan *plan);
enum ra_status ra_shard(struct ra_plan *plan, enum ra_side side, int64_t outer, int64_t row_bytes,
                        const void *whole, void *local);
enum ra_status ra_unshard(struct ra_plan *plan, enum ra_side side, int64_t outer, int64_t row_bytes,
                          const void *local, void *whole);
enum ra_status ra_mpi_link(struct ra_link *link, MPI_Comm comm, int ring_size, double timeout,
                           char error[320]);
enum ra_status ra_mpi_link_f(struct ra_link *link, int comm, int ring_size, double timeout,
                             char error[320]);
enum ra_status ra_mpi_scatter(struct ra_plan *plan, enum ra_side side, int64_t outer,
                              int64_t row_bytes, int root, const void *whole, void *local);
enum ra_status ra_mpi_gather(struct ra_plan *plan, enum ra_side side, int64_t outer,
                             int64_t row_bytes, int root, const void *local, void *whole);
enum ra_status ra_thread_links(struct ra_link *links, int ranks, char error[320]);
enum { RA_SCALE_CHOICES = 128 };
struct ra_batch {
    int64_t rows;
    int64_t first;
    int64_t total;
    int set;
    int64_t set_rows;
    int64_t length;
    MPI_Comm comm;
    int rank, ranks;
    struct ra_layout layout;
    int64_t token_bytes;
    double timeout;
    MPI_Datatype token;
    int64_t compared[14];
    int64_t *rows_of;
    int *parcel, *parcels_at;
    int *part, *parts_at;
    char *parcels;
    bool lost;
};
enum ra_status ra_batch_create(struct ra_batch **batch, MPI_Comm comm, struct ra_layout layout,
                               int64_t token_bytes, int64_t rows, double timeout, char *error);
enum ra_status ra_batch_shard(struct ra_batch *batch, const void *rows, void *shard, char *error);
enum ra_status ra_batch_unshard(struct ra_batch *batch, const void *shard, void *rows, char *error);
enum ra_status ra_batch_agree(struct ra_batch *batch, enum ra_status status, char *error);
void ra_batch_destroy(struct ra_batch *batch);
enum ra_norm_kind { RA_NORM_UNIT, RA_NORM_RMS, RA_NORM_LAYER, RA_NORM_RMS_PLUS_ONE };
enum ra_feed_kind { RA_FEED_GELU, RA_FEED_SWIGLU, RA_FEED_GEGLU };
enum ra_position_kind { RA_POSITIONS_ROTARY, RA_POSITIONS_LEARNED };
enum ra_rotary_kind {
    RA_ROTARY_PLAIN,
    RA_ROTARY_LLAMA3,
    RA_ROTARY_YARN,
    RA_ROTARY_YARN_UNTRUNCATED
};
struct ra_rotary_scaling {
    enum ra_rotary_kind kind;
    double factor, low, high;
    int64_t original;
};
enum ra_family {
    RA_FAMILY_ORIGINAL,
    RA_FAMILY_MGQA,
    RA_FAMILY_LLAMA,
    RA_FAMILY_MISTRAL,
    RA_FAMILY_QWEN2,
    RA_FAMILY_QWEN3,
    RA_FAMILY_GEMMA2
};
struct ra_batch;
struct ra_layer_config {
    size_t size;
    int64_t dim;
    bool prenorm;
    enum ra_norm_kind norm;
    double norm_eps;
    bool qkv_bias, out_bias;
    bool head_norm;
    bool rotary;
    double rotary_theta, rotary_scale;
    struct ra_rotary_scaling rotary_scaling;
    bool residual;
    struct ra_batch *batch;
    bool sinks;
    bool reserved[7];
};
struct ra_attention_weights {
    size_t size;
    float *gamma, *bias;
    float *qkv, *qkv_bias;
    float *q_gamma, *k_gamma;
    float *out, *out_bias;
    float *sinks;
};
struct ra_layer_arrays {
    size_t size;
    const float *x;
    const bool *mask;
    const int64_t *positions;
    float *y;
    void *kept;
    void *scratch;
    const float *dy;
    float *dx;
};
struct ra_layer;
enum ra_status ra_layer_create(struct ra_layer **layer, const struct ra_layer_config *config,
                               struct ra_plan *plan, char error[320]);
void ra_layer_destroy(struct ra_layer *layer);
const char *ra_layer_error(const struct ra_layer *layer);
int64_t ra_layer_kept_bytes(const struct ra_layer *layer);
int64_t ra_layer_scratch_bytes(const struct ra_layer *layer);
int64_t ra_layer_weight_count(const struct ra_layer *layer);
void ra_layer_weights_in(const struct ra_layer *layer, float *all,
                         struct ra_attention_weights *weights, size_t size);
enum ra_status ra_layer_forward(struct ra_layer *layer, const struct ra_attention_weights *weights,
                                const struct ra_layer_arrays *arrays);
enum ra_status ra_layer_backward(struct ra_layer *layer, const struct ra_attention_weights *weights,
                                 const struct ra_layer_arrays *arrays,
                                 const struct ra_attention_weights *gradients);
enum { RA_MOST_LAYERS = 256 };
struct ra_model_config {
    size_t size;
    int64_t vocabulary;
    int64_t dim;
    int64_t depth;
    int64_t heads;
    int64_t key_heads;
    int64_t head_dim;
    int64_t hidden;
    bool causal;
    bool tied;
    enum ra_head_map head_map;
    double softcap;
    double rotary_theta, rotary_scale;
    struct ra_rotary_scaling rotary_scaling;
    enum ra_norm_kind norm;
    double norm_eps;
    bool head_norm;
    enum ra_feed_kind feed;
    bool qkv_bias, out_bias, feed_bias, logits_bias;
    enum ra_position_kind position;
    int64_t longest;
    double position_scale;
    enum ra_family family;
    int64_t lookback[RA_MOST_LAYERS];
    double attention_scale;
    double logits_softcap;
    double embedding_scale;
    bool post_norm;
    bool reserved_post_norm[7];
    bool sinks;
    bool reserved_sinks[7];
};
void ra_model_config_init(struct ra_model_config *config, size_t size);
enum ra_status ra_model_check(const struct ra_model_config *config, char error[320]);
struct ra_parameter {
    char name[40];
    int64_t rows, columns, first, count;
};
int ra_parameter_count(const struct ra_model_config *config);
struct ra_parameter ra_parameter(const struct ra_model_config *config, int index);
int64_t ra_parameter_numbers(const struct ra_model_config *config);
enum { RA_SHARE_LINE = 16 };
struct ra_share {
    int64_t first, end;
};
struct ra_share ra_share(const struct ra_model_config *config, int rank, int ranks);
struct ra_layer_weights {
    size_t size;
    struct ra_attention_weights attention;
    float *attended_gamma, *attended_bias;
    float *feed_gamma, *feed_bias;
    float *up, *up_bias;
    float *down, *down_bias;
    float *fed_gamma, *fed_bias;
};
struct ra_end_weights {
    size_t size;
    float *embedding, *positions;
    float *gamma, *bias;
    float *logits, *logits_bias;
};
enum ra_status ra_model_layer_weights(const struct ra_model_config *config, const float *all,
                                      int64_t layer, struct ra_layer_weights *weights,
                                      char error[320]);
enum ra_status ra_model_end_weights(const struct ra_model_config *config, const float *all,
                                    struct ra_end_weights *weights, char error[320]);
int64_t ra_qkv_width(const struct ra_model_config *config);
int64_t ra_feed_width(const struct ra_model_config *config);
enum ra_status ra_parameters_finite(const struct ra_model_config *config, const float *all,
                                    const char *where, char error[320]);
void ra_parameters_begin(const struct ra_model_config *config, uint64_t seed, float *weights);
enum { RA_WHOLE_FOLDER = 1, RA_WHOLE_NEW = 2, RA_WHOLE_ALONE = 4, RA_WHOLE_HASTY = 8 };
enum { RA_WHOLE_PATH = 4096 };
struct ra_whole {
    char path[RA_WHOLE_PATH];
    int64_t number;
    char final[RA_WHOLE_PATH];
    char hidden[RA_WHOLE_PATH];
    const char *const *replaces;
    unsigned how;
    int lock;
};
enum ra_status ra_whole_begin(struct ra_whole *whole, const char *path, unsigned how,
                              const char *const *replaces, char *error);
enum ra_status ra_whole_join(struct ra_whole *whole, const char *path, unsigned how, int64_t number,
                             char *error);
enum ra_status ra_whole_publish(struct ra_whole *whole, char *error);
void ra_whole_end(struct ra_whole *whole);
void ra_whole_forget(struct ra_whole *whole);
struct ra_training {
    int64_t step, steps, warmup, batch, length, accumulate, seed, tokens;
    double rate, decay, clip, validation;
    uint64_t data;
};
enum ra_status ra_checkpoint_look(const char *path, struct ra_model_config *config, size_t size,
                                  struct ra_training *training, char error[320]);
enum ra_status ra_checkpoint_read(const char *path, float *weights, float *means, float *squares,
                                  char error[320]);
enum ra_status ra_checkpoint_try(const struct ra_whole *file, const struct ra_model_config *config,
                                 bool learns, char error[320]);
enum ra_status ra_checkpoint_write(struct ra_whole *file, const struct ra_model_config *config,
                                   const struct ra_training *training, const float *weights,
                                   const float *means, const float *squares, char error[320]);
enum ra_token_type {
    RA_TOKEN_UINT8,
    RA_TOKEN_UINT16,
    RA_TOKEN_UINT32,
    RA_TOKEN_LLMC,
    RA_TOKEN_MEGATRON
};
struct ra_tokens {
    int64_t count;
    int64_t columns;
    int64_t vocabulary;
    int64_t documents, *ends;
    int type, file, width;
    int64_t start;
    bool raw;
    struct ra_tokens_block *block;
    char path[160];
};
enum ra_status ra_tokens_open(struct ra_tokens *tokens, const char *path, enum ra_token_type type,
                              char *error);
enum ra_status ra_tokens_get(const struct ra_tokens *tokens, int64_t index, int32_t *token,
                             char *error);
enum { RA_TOKENS_PART = 1024 };
enum ra_status ra_tokens_scan(const struct ra_tokens *tokens, int64_t first, int64_t end,
                              uint64_t *sum, char *error);
void ra_tokens_close(struct ra_tokens *tokens);
struct ra_dataset {
    const struct ra_tokens *tokens;
    int64_t length;
    int64_t windows;
    int64_t training;
    uint64_t seed;
    int64_t document_end;
    int64_t most_documents;
};
enum ra_status ra_dataset_open(struct ra_dataset *dataset, const struct ra_tokens *tokens,
                               int64_t length, double validation, uint64_t seed,
                               int64_t document_end, char *error);
int64_t ra_dataset_left_out(const struct ra_dataset *dataset);
int64_t ra_dataset_window(const struct ra_dataset *dataset, int64_t sample);
enum ra_status ra_dataset_documents(const struct ra_dataset *dataset, int64_t window,
                                    int64_t *bounds, int64_t *count, char *error);
enum ra_status ra_dataset_read(const struct ra_dataset *dataset, int64_t window, int64_t count,
                               const int64_t *positions, int32_t *tokens, int32_t *labels,
                               char *error);
struct ra_model_device;
struct ra_model_run {
    size_t size;
    int64_t batch, length;
    bool has_mask;
    bool forward_only;
    bool keep_keys;
    bool recompute;
    bool gather;
    enum ra_layout_kind layout;
    int64_t bucket;
    int64_t max_slices;
    int64_t max_rows;
    int ring_size;
    int threads;
    double timeout;
    void (*observe)(void *observer, const struct ra_event *event);
    void *observer;
    enum ra_type cache_type;
    const struct ra_model_device *device;
    enum ra_type type;
    bool deterministic;
    enum ra_transport transport;
    bool shard_optimizer;
    int64_t prompt_rows;
};
struct ra_model_batch {
    size_t size;
    const int32_t *tokens;
    const int32_t *labels;
    const bool *mask;
    const struct ra_slice *slices;
    int64_t slice_count;
    enum ra_deal deal;
    const int64_t *positions;
};
struct ra_model;
enum ra_status ra_model_create(struct ra_model **model, const struct ra_model_config *config,
                               const struct ra_model_run *run, MPI_Comm comm, char error[320]);
void ra_model_destroy(struct ra_model *model);
const char *ra_model_error(const struct ra_model *model);
enum ra_status ra_model_set_slices(struct ra_model *model, const struct ra_model_batch *batch);
int64_t ra_model_rows(const struct ra_model *model);
void ra_model_positions(const struct ra_model *model, int64_t *positions);
int64_t ra_model_bytes(const struct ra_model *model);
int ra_model_threads(const struct ra_model *model);
enum ra_status ra_model_forward(struct ra_model *model, const float *weights,
                                const struct ra_model_batch *batch);
enum ra_status ra_model_logits(struct ra_model *model, const float *weights, int64_t first,
                               int64_t count, float *logits);
struct ra_tensor ra_model_keys(const struct ra_model *model, int64_t layer);
struct ra_tensor ra_model_values(const struct ra_model *model, int64_t layer);
struct ra_model_loss {
    double mean;
    int64_t labels;
};
enum ra_status ra_model_step(struct ra_model *model, const float *weights, int64_t count,
                             const struct ra_model_batch *batches, float *gradients,
                             struct ra_model_loss *loss);
enum ra_status ra_model_gather(struct ra_model *model, float *all);
struct ra_share ra_model_share(const struct ra_model *model);
struct ra_decoder;
enum ra_status ra_decoder_create(struct ra_decoder **decoder, const struct ra_model_config *config,
                                 const struct ra_model_run *run, int64_t most_new, MPI_Comm comm,
                                 char error[320]);
void ra_decoder_destroy(struct ra_decoder *decoder);
const char *ra_decoder_error(const struct ra_decoder *decoder);
int64_t ra_decoder_length(const struct ra_decoder *decoder);
int64_t ra_decoder_bytes(const struct ra_decoder *decoder);
enum ra_status ra_decoder_prompt(struct ra_decoder *decoder, const float *weights, int64_t count,
                                 const int32_t *tokens, float *logits);
enum ra_status ra_decoder_add(struct ra_decoder *decoder, const float *weights, int64_t count,
                              const int32_t *tokens, float *logits);
enum ra_status ra_folder_config(const char *folder, struct ra_model_config *config, size_t size,
                                char note[320], char error[320]);
enum ra_status ra_folder_ends(const char *folder, int64_t vocabulary, int most, int32_t *tokens,
                              int *count, char error[320]);
enum ra_status ra_folder_read(const char *folder, const struct ra_model_config *config,
                              float *weights, char error[320]);
enum ra_status ra_folder_write(const char *folder, const struct ra_model_config *config,
                               const float *weights, char error[320]);
enum ra_status ra_folder_weights(const char *folder, const struct ra_model_config *config,
                                 float *weights, char error[320]);
enum ra_status ra_folder_describe(const struct ra_model_config *config, bool bfloat16, char *text,
                                  size_t size, char error[320]);
enum ra_status ra_folder_store(const char *folder, const struct ra_model_config *config,
                               const float *weights, bool bfloat16, int64_t most, char error[320]);
enum ra_status ra_gathered_create(struct ra_plan **plan, const struct ra_config *config,
                                  MPI_Comm comm, char error[320]);
int64_t ra_gathered_sent(const struct ra_plan *plan, bool backward);
enum ra_status ra_model_config_read(const char *name, const char *text,
                                    struct ra_model_config *config, size_t size, char note[320],
                                    char error[320]);
int ra_model_config_write(const struct ra_model_config *config, char *text, size_t size);
struct ra_optimizer {
    size_t size;
    double rate;
    int64_t warmup, steps;
    double beta1, beta2;
    double epsilon;
    double decay;
    double clip;
};
double ra_optimizer_rate(const struct ra_optimizer *optimizer, int64_t step);
double ra_length(int threads, int64_t count, const float *vector);
double ra_optimizer_step(const struct ra_optimizer *optimizer, const struct ra_model_config *config,
                         struct ra_share share, int threads, int64_t step, const float *gradients,
                         float *weights, float *means, float *squares);
struct ra_sample {
    size_t size;
    double temperature;
    int64_t top_k;
    double top_p;
    uint64_t seed;
};
struct ra_sample_choice {
    double weight;
    float logit;
    int64_t token;
};
double ra_sample_random(uint64_t seed, uint64_t number);
enum ra_status ra_sample_draw(const struct ra_sample *how, uint64_t number, int64_t count,
                              const float *logits, struct ra_sample_choice *choices, int64_t *token,
                              char error[320]);
struct ra_tree;
enum ra_status ra_tree_create(struct ra_tree **tree, const struct ra_config *config, MPI_Comm ring,
                              char error[320]);
void ra_tree_destroy(struct ra_tree *tree);
const char *ra_tree_error(const struct ra_tree *tree);
int64_t ra_tree_length(const struct ra_tree *tree);
int64_t ra_tree_bytes(const struct ra_tree *tree);
int64_t ra_tree_reduced(const struct ra_tree *tree, int64_t count);
enum ra_status ra_tree_fill(struct ra_tree *tree, int64_t length, struct ra_tensor k,
                            struct ra_tensor v);
enum ra_status ra_tree_extend(struct ra_tree *tree, int64_t first, int64_t count,
                              struct ra_tensor k, struct ra_tensor v);
struct ra_tensor ra_tree_cached(const struct ra_tree *tree, int64_t first, bool values);
enum ra_status ra_tree_keep(struct ra_tree *tree, int64_t first, int64_t count, struct ra_tensor k,
                            struct ra_tensor v);
enum ra_status ra_tree_attend(struct ra_tree *tree, int64_t count, const struct ra_arrays *arrays);
struct ra_refusal {
    int64_t first, status;
    char text[320];
};
struct ra_vector;
