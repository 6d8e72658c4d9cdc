// One launch, as flash_attn/__init__.py describes it: its class PagedAttention has the same fields.
#pragma once

#include <cstdint>

// From one sequence, row or head to the next, in elements. Of keys and values, `batch` is from one page to the next.
struct Strides {
    int64_t batch, row, head;
};

struct PagedAttention {
    void *query, *keys, *values, *output;
    Strides query_strides, key_strides, value_strides, output_strides;
    void *log_sum_exp;  // float32 [batch, heads, max_query_len]; with query_starts [heads, total_queries]
    void *split_output, *split_log_sum_exp;  // float32, with num_splits in front; null if there is one split
    int *query_starts;  // [batch + 1]; null: every sequence has max_query_len queries
    int *key_starts, *key_lengths;  // [batch + 1] and [batch]; one of them is null
    int *block_tables;  // [batch, blocks]
    int64_t block_table_stride;
    void *stream;
    int device, batch, heads, kv_heads, head_dim, page_size;
    int max_query_len, max_key_len, total_queries, num_splits;
    int window_left, window_right;  // keys seen on each side of oneself; below 0: all
    int is_bfloat16;
    float scale;
};
