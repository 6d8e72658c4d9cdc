// The decoder in WebAssembly: what happens between token ids and logits, over a paged KV cache.
//
//     ids -> embedding -> N x [x + attention(norm(x)), x + mlp(norm(x))] -> norm -> head -> logits
//
// It is minillm/model/decoder.py for one thread and 128-bit vectors. A step is T tokens of however many requests, one
// after the other; a token knows its position, the slot that its key and value go to, and whose block table it reads.
// Weights are in 4 bits as the engine rounds them (minillm/kernels/quantization.py), the head in 8; keys and values are
// bfloat16, activations float32. Only to be multiplied, they're rounded to 16 bits: integers are twice as fast here.
//
// No library: the host gives cosine and sine, and the memory (start). Any C++17 compiler with vector extensions does.

using u8 = unsigned char;
using i8 = signed char;
using u16 = unsigned short;
using i16 = short;
using u32 = unsigned int;
using u64 = unsigned long long;

using f32x4 = float __attribute__((vector_size(16)));
using i32x4 = int __attribute__((vector_size(16)));
using u32x4 = u32 __attribute__((vector_size(16)));
using i16x8 = i16 __attribute__((vector_size(16)));
using u16x4 = u16 __attribute__((vector_size(8)));
using u8x8 = u8 __attribute__((vector_size(8)));
using i8x8 = i8 __attribute__((vector_size(8)));

extern "C" double cos(double);
extern "C" double sin(double);

namespace {

constexpr int GROUP = 32;          // inputs that share a scale
constexpr int TILE = 4;            // tokens that one reading of the weights serves
constexpr int BLOCK_SIZE = 16;     // tokens in a KV block
constexpr float LARGEST = 32767;   // of a number in 16 bits

template <class V>
V load(const void* from) {
    V vector;
    __builtin_memcpy(&vector, from, sizeof vector);
    return vector;
}

template <class V>
void store(void* to, V vector) {
    __builtin_memcpy(to, &vector, sizeof vector);
}

float larger(float a, float b) { return a > b ? a : b; }

float sum(f32x4 v) { return (v[0] + v[1]) + (v[2] + v[3]); }

float from_bfloat16(u16 bits) {
    u32 wide = u32(bits) << 16;
    return load<float>(&wide);
}

// To the nearest, and of two as near to the even one.
u16 to_bfloat16(float x) {
    u32 bits = load<u32>(&x);
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

f32x4 from_bfloat16(const u16* from) {
    u32x4 wide = __builtin_convertvector(load<u16x4>(from), u32x4) << 16;
    return (f32x4)wide;
}

// Products of eight pairs, neighbours added.
i32x4 multiply_pairs(i16x8 a, i16x8 b) {
#ifdef __wasm__
    return (i32x4)__builtin_wasm_dot_s_i32x4_i16x8(a, b);
#else
    i32x4 sums;
    for (int i = 0; i < 4; i++) sums[i] = a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1];
    return sums;
#endif
}

// e^x: a power of two, by the exponent's bits, and a polynomial for the rest (Cephes).
float exponential(float x) {
    if (x < -87) return 0;
    if (x > 88) x = 88;  // the largest that a float holds
    float whole = __builtin_floorf(x * 1.44269504f + 0.5f);
    float rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    const float factors[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                             4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
    float series = 0;
    for (float factor : factors) series = series * rest + factor;
    u32 power = u32(int(whole) + 127) << 23;
    return (series * rest * rest + rest + 1) * load<float>(&power);
}

// ---------------------------------------------------------------- what the file holds

struct Shape {
    int magic, hidden, inner, layers, heads, kv_heads, head_dim, vocab;
    float eps;
    int reserved[7];

    int width() const { return (heads + 2 * kv_heads) * head_dim; }  // of queries, keys and values together
};

struct Int4 {            // w = low + scale * q
    const u8* numbers;   // [out, in / 32, 16]: q of inputs i and i + 16 of a group in one byte
    const u16* scales;   // [out, in / 32, 2]: scale and low, bfloat16
    int out, in;

    void unpack(int output, int group, i16x8* q) const {
        const u8* packed = numbers + (output * (in / GROUP) + group) * (GROUP / 2);
        for (int half = 0; half < 2; half++) {
            u8x8 pairs = load<u8x8>(packed + 8 * half);
            q[half] = __builtin_convertvector(pairs & 15, i16x8);
            q[2 + half] = __builtin_convertvector(pairs >> 4, i16x8);
        }
    }
    float scale(int output, int group) const { return from_bfloat16(scales[2 * (output * (in / GROUP) + group)]); }
    float low(int output, int group) const { return from_bfloat16(scales[2 * (output * (in / GROUP) + group) + 1]); }
};

struct Int8 {             // w = scale * q
    const i8* numbers;    // [out, in]
    const float* scales;  // [out]
    int out, in;

    void unpack(int output, int group, i16x8* q) const {
        for (int i = 0; i < 4; i++)
            q[i] = __builtin_convertvector(load<i8x8>(numbers + output * in + group * GROUP + 8 * i), i16x8);
    }
    float scale(int output, int) const { return scales[output]; }
    float low(int, int) const { return 0; }
};

struct Layer {
    const float *input_norm, *post_attention_norm;
    Int4 qkv_proj, o_proj, gate_up_proj, down_proj;
};

// Takes one array after the other, each at a multiple of 16 bytes.
struct Memory {
    char* next;

    template <class T>
    T* take(u64 count) {
        T* here = (T*)next;
        next += (count * sizeof(T) + 15) / 16 * 16;
        return here;
    }
    Int4 take_int4(int out, int in) {
        const u8* numbers = take<u8>(u64(out) * in / 2);
        return {numbers, take<u16>(u64(out) * in / GROUP * 2), out, in};
    }
};

// ---------------------------------------------------------------- one model, and the memory of its steps

// Rows of activations, rounded to 16 bits: x = scale * n.
struct Rounded {
    i16* numbers;   // [T, in]
    float* scales;  // [T, in / 32]
    float* sums;    // [T, in / 32]: of the rounded x
};

// One step. T tokens; those at `rows` get logits.
struct Batch {
    int tokens, rows, table_width;
    const int *token_ids, *positions, *slots, *sequences;  // [T]; a slot is block * BLOCK_SIZE + offset
    const int* logit_rows;                                 // [R]
    const int* block_tables;                               // [sequences, table_width]

    explicit Batch(const int* at) : tokens(at[0]), rows(at[1]), table_width(at[2]) {
        token_ids = at + 3;
        positions = token_ids + tokens;
        slots = positions + tokens;
        sequences = slots + tokens;
        logit_rows = sequences + tokens;
        block_tables = logit_rows + rows;
    }
};

struct Model {
    Shape shape;
    const float *frequencies, *norm;
    Int8 head;
    Layer* layers;
    u16* kv_cache;  // [layers, blocks, BLOCK_SIZE, 2 (key, value), kv_heads, head_dim]
    u64 layer_size;
    float *x, *normed, *delta, *qkv, *attended, *gate_up, *cosines, *sines, *scores, *logits;
    Rounded rounded;
};
Model model;

// ---------------------------------------------------------------- operations

// x / rms(x) * weight
void rms_norm(const float* x, const float* weight, int tokens, float* normed) {
    int size = model.shape.hidden;
    for (int t = 0; t < tokens; t++, x += size, normed += size) {
        f32x4 squares = {};
        for (int i = 0; i < size; i += 4) squares += load<f32x4>(x + i) * load<f32x4>(x + i);
        float scale = 1 / __builtin_sqrtf(sum(squares) * (1.0f / size) + model.shape.eps);
        for (int i = 0; i < size; i += 4) store(normed + i, load<f32x4>(x + i) * scale * load<f32x4>(weight + i));
    }
}

void round_rows(const float* x, int count) {
    for (int g = 0; g < count / GROUP; g++) {
        const float* group = x + g * GROUP;
        float most = 0;
        for (int i = 0; i < GROUP; i++) most = larger(most, __builtin_fabsf(group[i]));
        float scale = most / LARGEST, inverse = most ? LARGEST / most : 0;
        int total = 0;
        for (int i = 0; i < GROUP; i++) {
            int number = __builtin_floorf(group[i] * inverse + 0.5f);
            model.rounded.numbers[g * GROUP + i] = number;
            total += number;
        }
        model.rounded.scales[g] = scale;
        model.rounded.sums[g] = scale * total;
    }
}

// One output of N tokens, from token t on.
template <int N, class Matrix>
void dot_products(const Matrix& w, int output, int t, float* y) {
    int groups = w.in / GROUP;
    f32x4 sums[N] = {};
    float lows[N] = {};
    for (int g = 0; g < groups; g++) {
        i16x8 q[4];
        w.unpack(output, g, q);
        float scale = w.scale(output, g), low = w.low(output, g);
        for (int n = 0; n < N; n++) {
            int at = (t + n) * groups + g;
            const i16* row = model.rounded.numbers + at * GROUP;
            i32x4 dot = multiply_pairs(q[0], load<i16x8>(row)) + multiply_pairs(q[1], load<i16x8>(row + 8)) +
                        multiply_pairs(q[2], load<i16x8>(row + 16)) + multiply_pairs(q[3], load<i16x8>(row + 24));
            sums[n] += __builtin_convertvector(dot, f32x4) * (scale * model.rounded.scales[at]);
            lows[n] += low * model.rounded.sums[at];
        }
    }
    for (int n = 0; n < N; n++) y[(t + n) * w.out + output] = sum(sums[n]) + lows[n];
}

// y = x W^T: [tokens, out] of [tokens, in]. However many tokens: each one's sums are the same.
template <class Matrix>
void multiply(const float* x, const Matrix& w, int tokens, float* y) {
    round_rows(x, tokens * w.in);
    for (int output = 0; output < w.out; output++) {
        int t = 0;
        for (; t + TILE <= tokens; t += TILE) dot_products<TILE>(w, output, t, y);
        for (; t < tokens; t++) dot_products<1>(w, output, t, y);
    }
}

void embed(const Batch& batch, float* x) {
    const Int8& table = model.head;  // tied: its rows are the embeddings
    for (int t = 0; t < batch.tokens; t++)
        for (int i = 0; i < table.in; i++)
            x[t * table.in + i] = table.numbers[batch.token_ids[t] * table.in + i] * table.scales[batch.token_ids[t]];
}

// Cosine and sine of every token's angles: once a step, for all layers.
void take_angles(const Batch& batch) {
    int half = model.shape.head_dim / 2;
    for (int t = 0; t < batch.tokens; t++)
        for (int i = 0; i < half; i++) {
            float angle = batch.positions[t] * model.frequencies[i];
            model.cosines[t * half + i] = cos(angle);
            model.sines[t * half + i] = sin(angle);
        }
}

// Turn queries and keys by their positions: dimensions i and i + d/2 are a pair.
void rotate(const Batch& batch) {
    int dim = model.shape.head_dim, half = dim / 2, width = model.shape.width();
    for (int t = 0; t < batch.tokens; t++)
        for (int h = 0; h < model.shape.heads + model.shape.kv_heads; h++) {
            float* head = model.qkv + t * width + h * dim;
            for (int i = 0; i < half; i++) {
                float a = head[i], b = head[i + half];
                float cosine = model.cosines[t * half + i], sine = model.sines[t * half + i];
                head[i] = a * cosine - b * sine;
                head[i + half] = b * cosine + a * sine;
            }
        }
}

void write_kv(const Batch& batch, u16* cache) {
    int width = model.shape.width(), size = 2 * model.shape.kv_heads * model.shape.head_dim;
    for (int t = 0; t < batch.tokens; t++) {
        const float* kv = model.qkv + (t + 1) * width - size;
        for (int i = 0; i < size; i++) cache[u64(batch.slots[t]) * size + i] = to_bfloat16(kv[i]);
    }
}

// softmax(q k^T / sqrt(d)) v of one token's head, over its request's blocks.
void attend_head(const Batch& batch, int t, int head, const u16* cache) {
    const Shape& shape = model.shape;
    int dim = shape.head_dim, kv_size = shape.kv_heads * dim, context = batch.positions[t] + 1;
    const float* query = model.qkv + t * shape.width() + head * dim;
    const int* table = batch.block_tables + batch.sequences[t] * batch.table_width;
    cache += head / (shape.heads / shape.kv_heads) * dim;  // a group of queries shares keys and values
    auto slot = [&](int p) { return u64(table[p / BLOCK_SIZE]) * BLOCK_SIZE + p % BLOCK_SIZE; };

    float scale = 1 / __builtin_sqrtf(dim), most = -1e30f, total = 0;
    for (int p = 0; p < context; p++) {
        const u16* key = cache + slot(p) * 2 * kv_size;
        f32x4 score = {};
        for (int i = 0; i < dim; i += 4) score += load<f32x4>(query + i) * from_bfloat16(key + i);
        model.scores[p] = sum(score) * scale;
        most = larger(most, model.scores[p]);
    }
    for (int p = 0; p < context; p++) total += model.scores[p] = exponential(model.scores[p] - most);

    float* out = model.attended + (t * shape.heads + head) * dim;
    for (int i = 0; i < dim; i++) out[i] = 0;
    for (int p = 0; p < context; p++) {
        const u16* value = cache + slot(p) * 2 * kv_size + kv_size;
        float share = model.scores[p] / total;
        for (int i = 0; i < dim; i += 4) store(out + i, load<f32x4>(out + i) + share * from_bfloat16(value + i));
    }
}

// silu(gate) * up, in gate's place.
void swiglu(int tokens) {
    int inner = model.shape.inner;
    for (int t = 0; t < tokens; t++)
        for (int i = 0; i < inner; i++) {
            float gate = model.gate_up[2 * t * inner + i], up = model.gate_up[2 * t * inner + inner + i];
            model.gate_up[t * inner + i] = gate / (1 + exponential(-gate)) * up;
        }
}

void add(float* x, const float* delta, int count) {
    for (int i = 0; i < count; i += 4) store(x + i, load<f32x4>(x + i) + load<f32x4>(delta + i));
}

// ---------------------------------------------------------------- the decoder

void run_layer(const Layer& layer, const Batch& batch, u16* cache) {
    int tokens = batch.tokens, size = tokens * model.shape.hidden;
    rms_norm(model.x, layer.input_norm, tokens, model.normed);
    multiply(model.normed, layer.qkv_proj, tokens, model.qkv);
    rotate(batch);
    write_kv(batch, cache);  // before any token attends: it sees itself, and finds earlier ones of this step
    for (int t = 0; t < tokens; t++)
        for (int head = 0; head < model.shape.heads; head++) attend_head(batch, t, head, cache);
    multiply(model.attended, layer.o_proj, tokens, model.delta);
    add(model.x, model.delta, size);

    rms_norm(model.x, layer.post_attention_norm, tokens, model.normed);
    multiply(model.normed, layer.gate_up_proj, tokens, model.gate_up);
    swiglu(tokens);
    multiply(model.gate_up, layer.down_proj, tokens, model.delta);
    add(model.x, model.delta, size);
}

}  // namespace

extern "C" {

// Where everything is. `file` is the packed model (pack.py); what a step needs comes behind it.
// Returns the first free address: the host makes the memory that large before the first step.
char* start(char* file, int file_bytes, int blocks, int max_tokens, int max_rows, int max_context) {
    model.shape = load<Shape>(file);
    const Shape& shape = model.shape;
    Memory weights{file + sizeof(Shape)}, memory{file + file_bytes};
    int attended = shape.heads * shape.head_dim, half = shape.head_dim / 2;
    int widest = shape.hidden > shape.inner ? shape.hidden : shape.inner;
    model.layers = memory.take<Layer>(shape.layers);
    model.frequencies = weights.take<float>(half);
    const i8* table = weights.take<i8>(u64(shape.vocab) * shape.hidden);
    model.head = {table, weights.take<float>(shape.vocab), shape.vocab, shape.hidden};
    model.norm = weights.take<float>(shape.hidden);
    for (int i = 0; i < shape.layers; i++) {
        Layer& layer = model.layers[i];
        layer.input_norm = weights.take<float>(shape.hidden);
        layer.qkv_proj = weights.take_int4(shape.width(), shape.hidden);
        layer.o_proj = weights.take_int4(shape.hidden, attended);
        layer.post_attention_norm = weights.take<float>(shape.hidden);
        layer.gate_up_proj = weights.take_int4(2 * shape.inner, shape.hidden);
        layer.down_proj = weights.take_int4(shape.hidden, shape.inner);
    }
    model.layer_size = u64(blocks) * BLOCK_SIZE * 2 * shape.kv_heads * shape.head_dim;
    model.kv_cache = memory.take<u16>(shape.layers * model.layer_size);
    model.x = memory.take<float>(max_tokens * shape.hidden);
    model.normed = memory.take<float>(max_tokens * shape.hidden);
    model.delta = memory.take<float>(max_tokens * shape.hidden);
    model.qkv = memory.take<float>(max_tokens * shape.width());
    model.attended = memory.take<float>(max_tokens * attended);
    model.gate_up = memory.take<float>(max_tokens * 2 * shape.inner);
    model.cosines = memory.take<float>(max_tokens * half);
    model.sines = memory.take<float>(max_tokens * half);
    model.scores = memory.take<float>(max_context);
    model.logits = memory.take<float>(u64(max_rows) * shape.vocab);
    model.rounded.numbers = memory.take<i16>(max_tokens * widest);
    model.rounded.scales = memory.take<float>(max_tokens * widest / GROUP);
    model.rounded.sums = memory.take<float>(max_tokens * widest / GROUP);
    return memory.next;
}

// One step. Returns its logits [R, vocab].
const float* step(const int* packed_batch) {
    Batch batch(packed_batch);
    int hidden = model.shape.hidden;
    embed(batch, model.x);
    take_angles(batch);
    for (int i = 0; i < model.shape.layers; i++)
        run_layer(model.layers[i], batch, model.kv_cache + i * model.layer_size);
    rms_norm(model.x, model.norm, batch.tokens, model.normed);
    for (int r = 0; r < batch.rows; r++)  // only rows that sample go through the head: it is as wide as the vocabulary
        for (int i = 0; i < hidden; i++) model.delta[r * hidden + i] = model.normed[batch.logit_rows[r] * hidden + i];
    multiply(model.delta, model.head, batch.rows, model.logits);
    return model.logits;
}

// The token with the largest logit of a row; of equal ones the first. -1 if the row is not finite.
int likeliest(int row) {
    const float* logits = model.logits + u64(row) * model.shape.vocab;
    int best = 0;
    for (int i = 1; i < model.shape.vocab; i++)
        if (logits[i] > logits[best] || logits[i] != logits[i]) best = i;
    return __builtin_fabsf(logits[best]) < 3e38f ? best : -1;
}

// A token drawn from softmax(logits / temperature) by `uniform` in [0, 1): the first whose cumulated weight exceeds its
// share of the total.
int draw(int row, float temperature, double uniform) {
    int best = likeliest(row);
    if (best < 0) return -1;
    const float* logits = model.logits + u64(row) * model.shape.vocab;
    double total = 0, cumulated = 0;
    for (int i = 0; i < model.shape.vocab; i++) total += exponential((logits[i] - logits[best]) / temperature);
    for (int i = 0; i < model.shape.vocab; i++) {
        cumulated += exponential((logits[i] - logits[best]) / temperature);
        if (cumulated > uniform * total) return i;
    }
    return best;
}
}
