// One rank's closed loop, step by step: what course/simulator plays, in a thousandth of the time.
//
// Steps are priced by the formula of cost/roofline.py, whose coefficients come from its StepTimeModel; a step's work
// is counted as Deployment.adjusted does. Prompts go first and share the budget; where they are computed in steps of
// their own, answers wait. A prefill pool is a queue: prompts that wait for it are computed together.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

// Seconds, unless a name says otherwise. Must be as in closed_loop.py.
struct Prices {
    double token, logit, half_tokens, weights, idle, serial;             // linear layers
    double pair, prompt_pair, context;                                   // attention
    double reduce_latency[3], reduce_token[3];                           // all-reduce: the fastest of three ways
    double exchange, exchange_row;                                       // data-parallel ranks
    double gaps, prefill, host, prefill_host, step, request;
    double skip, experts, chosen, expert_ranks, expert_row;              // a mixture
    double dp, ranks;                                                    // ranks: tokens of all, in own tokens
    double state_tokens, window_tokens, window_share, picked, index_read, index_scored;  // what attention sees
};

struct Load {
    double open, waves, isl, osl, shortest_prompt, shortest_answer, longest_answer;
    double slots, budget, kv_tokens, mixes, chunks, fresh, waits, compile, client, tokenize;
    double look_every, hold;                             // steps between two looks for requests; that the first is held
    double first_wave;                                   // share of the first wave in the mean, and of the last
    double prefill_fixed, prefill_prompt, prefill_most;  // a pool's batch: fixed + prompts x prefill_prompt; 0 = none
    double prefill_ranks, transfer_token;                // prefill ranks for each decode rank
    Prices price;
};

struct Work {
    double tokens = 0, logits = 0, requests = 0, pairs = 0, context = 0;
    double prompts = 0, prompt_tokens = 0, prompt_pairs = 0, prompt_context = 0;
};

static double normal_quantile(double p) {  // p > 1/2; Abramowitz and Stegun 26.2.23
    double t = std::sqrt(-2 * std::log(1 - p));
    return t - ((0.010328 * t + 0.802853) * t + 2.515517) / (((0.001308 * t + 0.189269) * t + 1.432788) * t + 1);
}

static double busiest(const Prices& k, double mean, double drawn, double most) {
    double deviation = std::sqrt(mean * std::max(k.experts - drawn, 0.0) / std::max(k.experts - 1, 1.0));
    double z = normal_quantile((k.expert_ranks - 0.375) / (k.expert_ranks + 0.25));
    return std::min(mean + z * deviation, most);
}

static double seen(const Prices& k, double context, double requests) {
    double read = context;
    if (k.picked > 0) read = k.index_read * context + (1 - k.index_read) * std::min(context, requests * k.picked);
    return read + requests * k.state_tokens + k.window_share * std::min(context, requests * k.window_tokens);
}

static double scored(const Prices& k, double pairs, double queries) {
    double all = pairs;
    if (k.picked > 0) all = k.index_scored * pairs + std::min(pairs, queries * k.picked);
    return all + k.window_share * std::min(all, queries * k.window_tokens);
}

static double price(const Prices& k, const Work& w) {
    double tokens = w.tokens * k.ranks, logits = w.logits * k.ranks;
    double prompt_context = seen(k, w.prompt_context, w.prompts);
    double context = seen(k, w.context - w.prompt_context, w.requests - w.prompts);
    double prompt_pairs = scored(k, w.prompt_pairs, w.prompt_tokens) * k.dp;
    double pairs = scored(k, w.pairs - w.prompt_pairs, w.tokens - w.prompt_tokens) * k.dp;

    double products = k.token * tokens + k.logit * logits, woken = 1 - std::pow(k.skip, tokens - 1), visits = tokens;
    if (k.expert_ranks > 1) {
        double own = std::floor(k.experts / k.expert_ranks), even = tokens * k.chosen / k.expert_ranks;
        double rows = busiest(k, even, k.chosen, tokens * std::min(k.chosen, own));
        double mean = own * (1 - std::pow(1 - k.chosen / k.experts, tokens));
        double read = busiest(k, mean, mean * k.expert_ranks, own);
        woken = (k.expert_ranks * read - k.chosen) / std::max(k.experts - k.chosen, 1.0);
        products += k.expert_row * (rows - even);
        visits = tokens * (1 - std::pow(1 - 1 / k.expert_ranks, k.chosen));
    }
    products *= 1 + k.half_tokens / tokens;
    double weights = k.weights + k.idle * woken;
    double linear = std::max(products, weights) + k.serial * std::min(products, weights);
    double attention = std::max(k.prompt_pair * prompt_pairs, k.context * prompt_context);
    attention += std::max(k.pair * pairs, k.context * context);
    double reduce = k.reduce_latency[0] + k.reduce_token[0] * tokens;
    for (int way = 1; way < 3; way++) reduce = std::min(reduce, k.reduce_latency[way] + k.reduce_token[way] * tokens);
    double exchange = k.exchange + k.exchange_row * visits;
    bool has_prompts = w.prompts > 0;
    double device = linear + attention + reduce + exchange + k.gaps + k.prefill * has_prompts;
    double host = k.host + k.prefill_host * has_prompts;
    return std::max(device, host) + k.step + k.request * w.requests;
}

extern "C" double price_of_prompts(const Prices* k, double prompts, double length) {
    Work w;
    w.tokens = w.context = w.prompt_tokens = w.prompt_context = prompts * length;
    w.logits = w.requests = w.prompts = prompts;
    w.pairs = w.prompt_pairs = prompts * length * (length + 1) / 2;
    return price(*k, w);
}

struct Request {
    double sent, first = 0;
    int prompt, answer, done, number;
};

static const int NEVER_WARM = 10;
static const uint64_t SEED = 20119;

class Loop {
  public:
    explicit Loop(const Load& load) : load_(load), total_(std::llround(load.open * load.waves)) {
        for (int i = 0; i < NEVER_WARM; i++) draw();
    }

    void play(double* ttft, double* tpot) {
        for (int i = 0; i < load_.open && i < total_; i++) send(0);
        while (finished_ < total_ && step()) {
        }
        means(ttft, tpot);
    }

  private:
    using Arrival = std::pair<double, int>;
    using End = std::pair<long, int>;

    double draw() {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return (state_ >> 11) * (1.0 / 9007199254740992.0);
    }

    int length(double most, double low, double high) {
        return (int)std::max(2LL, std::llround(most * (low + (high - low) * draw())));
    }

    void send(double now) {
        Request r;
        r.sent = now;
        r.number = (int)all_.size();
        r.prompt = length(load_.isl, load_.shortest_prompt, 1);
        r.answer = length(load_.osl, load_.shortest_answer, load_.longest_answer);
        r.done = r.number < load_.fresh ? 0 : r.prompt - 1;
        front_free_ = std::max(front_free_, now + load_.client / 2) + load_.tokenize * r.prompt;
        double at = front_free_;
        if (load_.prefill_ranks > 0) {
            double begins = std::max(at, pool_free_), alone = load_.prefill_fixed + load_.prefill_prompt;
            double together = std::min(1 + (begins - at) / alone, load_.prefill_most);
            double batch = load_.prefill_fixed + together * load_.prefill_prompt;
            double scale = r.prompt / load_.isl;
            pool_free_ = begins + scale * batch / together / load_.prefill_ranks;
            at = begins + scale * batch + load_.transfer_token * r.prompt;
            r.done = r.prompt - 1;
        }
        all_.push_back(r);
        arriving_.push({at, r.number});
    }

    // Whether the prompt is through.
    bool compute(int id, double& budget, Work& work) {
        Request& r = all_[id];
        int take = (int)std::min<double>(r.prompt - r.done, budget);
        if (take <= 0) return false;
        double pairs = (double)take * r.done + take * (take + 1.0) / 2;
        r.done += take;
        budget -= take;
        work.tokens += take;
        work.pairs += pairs;
        work.context += r.done;
        work.requests += 1;
        if (load_.prefill_ranks == 0) {
            work.prompts += 1;
            work.prompt_tokens += take;
            work.prompt_pairs += pairs;
            work.prompt_context += r.done;
        }
        bool through = r.done == r.prompt;
        work.logits += through;
        if (through) ready_.push_back(id);
        return through;
    }

    bool step() {
        // A busy engine has scheduled this step while the last one ran: what came since is in the next.
        bool idle = writing_ == 0 && begun_.empty() && head_ == waiting_.size() && held_back_.empty();
        double scheduled = idle ? now_ : began_;
        bool looks = idle || has_computed_prompts_ || steps_ - looked_ >= load_.look_every;
        while (looks && !arriving_.empty() && arriving_.top().first <= scheduled) {
            if (held_back_.empty()) held_since_ = steps_;
            held_back_.push_back(arriving_.top().second);
            arriving_.pop();
        }
        if (looks) looked_ = steps_;
        if (writing_ == 0 || steps_ - held_since_ >= load_.hold) {
            waiting_.insert(waiting_.end(), held_back_.begin(), held_back_.end());
            held_back_.clear();
        }
        if (writing_ == 0 && begun_.empty() && head_ == waiting_.size()) {
            if (arriving_.empty()) return false;
            now_ = std::max(now_, arriving_.top().first);
            return true;
        }
        began_ = now_;
        Work prompts;
        double budget = load_.budget - writing_;
        ready_.clear();
        std::vector<int> unfinished;
        for (int id : begun_)
            if (!compute(id, budget, prompts)) unfinished.push_back(id);
        begun_.swap(unfinished);
        while (head_ < waiting_.size() && budget > 0 && running_ < load_.slots) {
            int id = waiting_[head_];
            const Request& r = all_[id];
            if (running_ > 0 && held_ + r.prompt + r.answer / 2.0 > load_.kv_tokens) break;
            if (!load_.chunks && prompts.tokens > 0 && r.prompt - r.done > budget) break;
            head_++;
            running_++;
            held_ += r.prompt + r.answer / 2.0;
            if (!compute(id, budget, prompts)) begun_.push_back(id);
        }
        has_computed_prompts_ = prompts.tokens > 0;
        Work answers;
        answers.tokens = answers.logits = answers.requests = writing_;
        answers.pairs = answers.context = context_;
        long alike = 1;
        if (prompts.tokens == 0) {
            alike = steps_alike(answers);
        } else if (load_.mixes || writing_ == 0) {
            Work both = prompts;
            both.tokens += writing_, both.logits += writing_, both.requests += writing_;
            both.pairs += context_, both.context += context_;
            now_ += price(load_.price, both);
        } else {
            now_ += price(load_.price, prompts) + price(load_.price, answers);
        }
        if (writing_ > 0) {
            steps_ += alike;
            context_ += alike * writing_;
            while (!ends_.empty() && ends_.top().first <= steps_) {
                finish(ends_.top().second);
                ends_.pop();
            }
        }
        for (int id : ready_) {
            Request& r = all_[id];
            r.first = now_;
            writing_++;
            context_ += r.prompt + 1;
            ends_.push({steps_ + r.answer - 1, id});
        }
        return true;
    }

    // Take as many steps of answers as come before the next end or arrival: how many. A price grows with the context, so
    // the one in the middle is their mean.
    long steps_alike(Work answers) {
        double first = price(load_.price, answers), last = first;
        long steps = 1;
        if (begun_.empty() && held_back_.empty()) {
            steps = std::max(ends_.top().first - steps_, 1L);
            if (!arriving_.empty())
                steps = std::min(steps, std::max((long)((arriving_.top().first - now_) / first), 1L));
        }
        if (steps > 1) {
            Work middle = answers;
            middle.pairs = middle.context = context_ + (steps - 1) / 2.0 * writing_;
            double mean = price(load_.price, middle);
            now_ += steps * mean;
            last = 2 * mean - first;
            long unseen = steps_ + steps - 1 - looked_, every = std::max(std::lround(load_.look_every), 1L);
            looked_ += unseen / every * every;
        } else {
            now_ += first;
        }
        began_ = now_ - last;
        return steps;
    }

    void finish(int id) {
        const Request r = all_[id];
        writing_--, running_--, finished_++;
        context_ -= r.prompt + r.answer;
        held_ -= r.prompt + r.answer / 2.0;
        double tpot = (now_ - r.first) / (r.answer - 1);
        double ttft = r.first - r.sent + load_.client / 2;
        ttft += r.number < load_.open ? load_.compile : load_.waits * tpot;
        int wave = r.number < load_.open ? 0 : r.number >= total_ - load_.open ? 2 : 1;
        count_[wave]++, ttft_[wave] += ttft, tpot_[wave] += tpot;
        if ((long)all_.size() < total_) send(now_ + load_.client / 2);
    }

    void means(double* ttft, double* tpot) const {
        double weights[3] = {load_.first_wave, 1 - 2 * load_.first_wave, load_.first_wave}, weight = 0;
        *ttft = *tpot = 0;
        for (int wave = 0; wave < 3; wave++) {
            if (!count_[wave]) continue;
            weight += weights[wave];
            *ttft += weights[wave] * ttft_[wave] / count_[wave];
            *tpot += weights[wave] * tpot_[wave] / count_[wave];
        }
        *ttft /= weight;
        *tpot /= weight;
    }

    const Load& load_;
    const long total_;
    uint64_t state_ = SEED;
    double now_ = 0, began_ = 0, front_free_ = 0, pool_free_ = 0, context_ = 0, held_ = 0, writing_ = 0, running_ = 0;
    long steps_ = 0, finished_ = 0, looked_ = 0, held_since_ = 0;
    bool has_computed_prompts_ = false;
    std::vector<Request> all_;
    std::vector<int> held_back_, waiting_, begun_, ready_;
    size_t head_ = 0;
    std::priority_queue<Arrival, std::vector<Arrival>, std::greater<Arrival>> arriving_;
    std::priority_queue<End, std::vector<End>, std::greater<End>> ends_;
    double ttft_[3] = {0, 0, 0}, tpot_[3] = {0, 0, 0};
    int count_[3] = {0, 0, 0};
};

extern "C" void play(const Load* loads, int number, double* means) {
    for (int i = 0; i < number; i++) Loop(loads[i]).play(&means[2 * i], &means[2 * i + 1]);
}
