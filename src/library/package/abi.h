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
enum ra_status {
    RA_OK,
    RA_INVALID,
    RA_OUT_OF_MEMORY,
    RA_DISAGREEMENT,
    RA_LOST,
    RA_DEVICE,
    RA_CANCELLED
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
