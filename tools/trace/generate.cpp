// SPDX-FileCopyrightText: 2026 The vmm authors
// SPDX-License-Identifier: Apache-2.0
module vmm.trace_generator;

import vmm.std;

namespace vmm::tools {
namespace {

using number = std::uint64_t;
using blocks = std::vector<number>;

/// Random numbers that are the same with every standard library.
class dice {
 public:
  explicit dice(number seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}

  number next() {
    state_ += 0x9E3779B97F4A7C15u;
    number mixed = (state_ ^ state_ >> 30) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EBu;
    return mixed ^ mixed >> 31;
  }
  /// From `least` to `most`, both with them.
  number between(number least, number most) { return least + next() % (most - least + 1); }
  bool one_in(number count) { return next() % count == 0; }
  /// Skewed to the small ones: the smaller of two.
  number small(number least, number most) {
    const number first = between(least, most);
    return std::min(first, between(least, most));
  }

 private:
  number state_;
};

/// Writes events; sizes are bytes.
class script {
 public:
  number take(number size_bytes) {
    text_ += "a " + std::to_string(next_) + " " + std::to_string(std::max<number>(size_bytes, 1)) +
             " 0\n";
    return next_++;
  }
  void give(number block) { text_ += "f " + std::to_string(block) + "\n"; }
  void give(blocks& all) {
    for (const number block : all) give(block);
    all.clear();
  }
  /// Lives for no other event.
  void touch(number size_bytes) { give(take(size_bytes)); }
  void iteration(number count) { text_ += "i " + std::to_string(count) + "\n"; }
  [[nodiscard]] std::string text() { return std::move(text_); }

 private:
  std::string text_;
  number next_ = 1;
};

// ---- pictures from text: a service that draws -----------------------------------------

struct picture_job {
  number batch;
  number height;  // of the latent
  number width;
};

/// One pass through the network: down with what the way up needs kept, then up again.
void denoise(script& out, dice& draw, const picture_job& job) {
  constexpr std::array<number, 4> channels = {320, 640, 1280, 1280};
  blocks kept;
  for (std::size_t level = 0; level < channels.size(); ++level) {
    const number tokens = 2 * job.batch * (job.height >> level) * (job.width >> level);
    const number half_bytes = tokens * channels[level] * 2;
    for (int block = 0; block < 2; ++block) {
      const number norm = out.take(half_bytes);
      out.touch(tokens * 8);
      const number result = out.take(half_bytes);
      out.touch(draw.between(1, 64) << 20);  // the convolution's workspace
      out.give(norm);
      if (level < 3) {
        blocks heads = {out.take(half_bytes), out.take(half_bytes), out.take(half_bytes)};
        heads.push_back(out.take(half_bytes * 8));  // gated, twice four times as wide
        out.touch(half_bytes * 4);
        out.give(heads);
      }
      kept.push_back(result);
    }
  }
  while (!kept.empty()) {
    const std::size_t level = (kept.size() - 1) / 2;
    const number tokens = 2 * job.batch * (job.height >> level) * (job.width >> level);
    const number joined = out.take(tokens * channels[level] * 4);
    out.give(kept.back());
    kept.pop_back();
    const number result = out.take(tokens * channels[level] * 2);
    out.give(joined);
    out.touch(tokens * channels[level] * 2);
    out.give(result);
  }
}

void draw_pictures(script& out, dice& draw) {
  blocks weights;
  for (const number channel : {320u, 640u, 1280u, 1280u, 1280u, 640u, 320u}) {
    for (int i = 0; i < 12; ++i) weights.push_back(out.take(channel * channel * 9 * 2));
    for (int i = 0; i < 40; ++i) weights.push_back(out.take(channel * channel * 2));
    for (int i = 0; i < 30; ++i) weights.push_back(out.take(channel * 2));
  }
  blocks answers;
  for (number request = 1; request <= 40; ++request) {
    out.iteration(request);
    const picture_job job{number{1} << draw.small(0, 2), draw.between(8, 16) * 8,
                          draw.between(8, 16) * 8};
    const number latent = out.take(job.batch * 4 * job.height * job.width * 4);
    for (int step = 0; step < 12; ++step) denoise(out, draw, job);
    number wide = out.take(job.batch * 512 * job.height * job.width * 2);
    for (const number scale : {2u, 4u, 8u}) {  // the decoder doubles both sides three times
      const number channel = scale == 8 ? 128 : 512 / (scale / 2);
      const number size_bytes = job.batch * channel * job.height * job.width * scale * scale * 2;
      for (int layer = 0; layer < 3; ++layer) {
        const number larger = out.take(size_bytes);
        out.touch(size_bytes);
        out.give(wide);
        wide = larger;
      }
    }
    answers.push_back(out.take(job.batch * 3 * job.height * job.width * 64));
    out.give(wide);
    out.give(latent);
    while (answers.size() > 6 || (!answers.empty() && draw.one_in(3))) {
      const auto gone = answers.begin() + static_cast<std::ptrdiff_t>(draw.next() % answers.size());
      out.give(*gone);
      answers.erase(gone);
    }
  }
}

// ---- training on pictures of any size, gradients summed over some batches ---------------

void train_on_pictures(script& out, dice& draw) {
  constexpr number width = 1024;
  constexpr number layers = 24;
  const std::array<number, 4> shapes = {width * width * 3, width * width, width * width * 4,
                                        width * width * 4};
  blocks gradients;
  for (number layer = 0; layer < layers; ++layer) {
    for (const number shape : shapes) (void)out.take(shape * 2);
    for (int small = 0; small < 8; ++small) (void)out.take(width * 2);
  }
  for (number step = 1; step <= 12; ++step) {
    out.iteration(step);
    for (int batch = 0; batch < 3; ++batch) {
      const number side = draw.between(14, 40);
      const number tokens = draw.between(8, 32) * side * side;
      std::vector<blocks> kept(layers);
      for (blocks& layer : kept) {
        const bool again = &layer < kept.data() + layers / 2;  // half of them are computed twice
        layer.push_back(out.take(tokens * width * 2));
        blocks inner = {out.take(tokens * width * 6), out.take(tokens * 16 * 4)};
        inner.push_back(out.take(tokens * width * 2));
        inner.push_back(out.take(tokens * width * 8));
        inner.push_back(out.take(tokens * width * 8));
        out.touch(tokens * width * 2);
        if (again) out.give(inner);
        layer.insert(layer.end(), inner.begin(), inner.end());
      }
      for (auto layer = kept.rbegin(); layer != kept.rend(); ++layer) {
        blocks inner;
        if (layer->size() == 1)
          inner = {out.take(tokens * width * 6), out.take(tokens * width * 16)};
        const number flow = out.take(tokens * width * 8);
        out.touch(tokens * width * 6);
        if (gradients.size() < layers * shapes.size()) {
          for (const number shape : shapes) gradients.push_back(out.take(shape * 4));
        } else {
          for (const number shape : shapes) out.touch(shape * 2);
        }
        out.give(flow);
        out.give(inner);
        out.give(*layer);
      }
    }
    if (step == 1) {
      for (number layer = 0; layer < layers; ++layer)
        for (const number shape : shapes) (void)out.take(shape * 8);
    }
    blocks updates;  // the optimizer takes a list of tensors at a time
    for (const number shape : shapes) {
      for (number layer = 0; layer < layers; ++layer) updates.push_back(out.take(shape * 4));
      out.give(updates);
    }
  }
}

// ---- serving texts: a cache in pages, prompts in parts, adapters that come and go --------

void serve_texts(script& out, dice& draw) {
  constexpr number width = 4096;
  constexpr number page_bytes = number{2} << 20;
  struct guest {
    blocks pages;
    number tokens;
    number wanted;
  };
  for (int layer = 0; layer < 32; ++layer) {
    for (const number shape :
         {width * width * 3 / 2, width * width, width * 14336 * 2, width * 14336})
      (void)out.take(shape * 2);
  }
  std::vector<guest> guests;
  std::vector<blocks> adapters;
  for (number step = 0; step < 6000; ++step) {
    if (step % 250 == 0) out.iteration(step / 250 + 1);
    const number crowd = 24 + (step / 900 % 2) * 60;  // quiet and busy hours
    number part = 0;
    if (guests.size() < crowd && draw.one_in(3)) {
      part = draw.small(32, 6000);
      guests.push_back({{}, part, part + draw.small(20, 900)});
    }
    const number tokens = guests.size() + part;
    blocks work = {out.take(tokens * width * 2), out.take(tokens * width * 3)};
    work.push_back(out.take(tokens * 14336 * 4));
    out.touch(tokens * 14336 * 2);
    out.give(work);
    out.touch(guests.size() * 128256 * 4);
    for (guest& each : guests) {
      ++each.tokens;
      while (each.pages.size() < each.tokens / 16 + 1) each.pages.push_back(out.take(page_bytes));
    }
    for (std::size_t i = 0; i < guests.size();) {
      if (guests[i].tokens < guests[i].wanted) {
        ++i;
        continue;
      }
      out.give(guests[i].pages);
      guests.erase(guests.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (draw.one_in(60)) {
      blocks adapter;
      const number rank = number{8} << draw.between(0, 4);
      for (int i = 0; i < 64; ++i) adapter.push_back(out.take(rank * width * 2));
      adapters.push_back(std::move(adapter));
    }
    if (adapters.size() > 8 || (!adapters.empty() && draw.one_in(80))) {
      const auto gone =
          adapters.begin() + static_cast<std::ptrdiff_t>(draw.next() % adapters.size());
      out.give(*gone);
      adapters.erase(gone);
    }
  }
}

// ---- learning on graphs: neighbourhoods of any size, features kept for a while -----------

void train_on_graphs(script& out, dice& draw) {
  constexpr number features = 768;
  constexpr number hidden = 512;
  for (int layer = 0; layer < 6; ++layer) (void)out.take(features * hidden * 4 * 3);
  blocks cache;
  for (number step = 1; step <= 400; ++step) {
    if (step % 20 == 1) out.iteration(step / 20 + 1);
    std::array<number, 4> nodes{};
    nodes[0] = draw.between(512, 2048);
    for (std::size_t hop = 1; hop < nodes.size(); ++hop)
      nodes[hop] = nodes[hop - 1] * draw.small(2, 12);
    blocks kept = {out.take(nodes[3] * features * 4)};
    for (std::size_t hop = 3; hop > 0; --hop) {
      const number edges = nodes[hop] + nodes[hop - 1] * draw.between(1, 5);
      kept.push_back(out.take(edges * 16));
      const number messages = out.take(edges * hidden * 4);
      kept.push_back(out.take(nodes[hop - 1] * hidden * 4));
      out.touch(edges * 4);
      if (draw.one_in(2)) {
        kept.push_back(messages);
      } else {
        out.give(messages);
      }
      kept.push_back(out.take(nodes[hop - 1] * hidden * 4));
    }
    while (!kept.empty()) {
      const number flow = out.take(draw.between(1, nodes[2]) * hidden * 4);
      const std::size_t last =
          draw.one_in(4) && kept.size() > 1 ? kept.size() - 2 : kept.size() - 1;
      out.give(kept[last]);
      kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(last));
      out.give(flow);
    }
    cache.push_back(out.take(draw.small(1000, 120000) * features * 4));
    while (cache.size() > 24) {
      const auto gone = cache.begin() + static_cast<std::ptrdiff_t>(draw.next() % 12);
      out.give(*gone);
      cache.erase(gone);
    }
  }
}

// ---- reinforcement: generate, score, train, with models moved in and out -----------------

constexpr number tuned_width = 2048;
constexpr number tuned_layers = 24;

blocks bring_in(script& out, number bytes_each) {
  blocks model;
  for (number layer = 0; layer < tuned_layers; ++layer) {
    for (const number share : {3u, 1u, 8u, 4u})
      model.push_back(out.take(tuned_width * tuned_width * share * bytes_each));
  }
  return model;
}

void answer(script& out, dice& draw, number batch) {
  number tokens = draw.between(64, 512);
  blocks cache;
  for (number layer = 0; layer < 2 * tuned_layers; ++layer)
    cache.push_back(out.take(batch * tokens * tuned_width / 4 * 2));
  const number rounds = draw.between(12, 28);
  for (number round = 0; round < rounds; ++round) {
    tokens += 32;  // the cache grows by parts, each layer's by a copy
    for (number& layer : cache) {
      const number larger = out.take(batch * tokens * tuned_width / 4 * 2);
      out.give(layer);
      layer = larger;
      if (draw.one_in(4)) out.touch(draw.between(1, 4096) * 512);
    }
    out.touch(batch * 64000 * 4);
  }
  out.give(cache);
}

void train_on_scores(script& out, dice& draw) {
  (void)bring_in(out, 2);
  for (number step = 1; step <= 10; ++step) {
    out.iteration(step);
    const number batch = draw.between(16, 48);
    answer(out, draw, batch);
    blocks judge = bring_in(out, 2);
    for (int part = 0; part < 4; ++part) {
      const number tokens = batch / 4 * draw.between(400, 1400);
      blocks work = {out.take(tokens * tuned_width * 2), out.take(tokens * tuned_width * 8)};
      out.touch(tokens * tuned_width * 8);
      out.give(work);
    }
    out.give(judge);
    blocks state = bring_in(out, 8);
    for (int part = 0; part < 8; ++part) {
      const number tokens = std::max<number>(batch / 8, 1) * draw.between(400, 1400);
      blocks kept;
      for (number layer = 0; layer < tuned_layers; ++layer) {
        kept.push_back(out.take(tokens * tuned_width * 2));
        out.touch(tokens * tuned_width * 8);
        kept.push_back(out.take(tokens * tuned_width * 6));
      }
      const number scores = out.take(tokens * 64000 * 2);
      out.touch(tokens * 64000 * 4);
      while (!kept.empty()) {
        const number flow = out.take(tokens * tuned_width * 8);
        out.give(kept.back());
        kept.pop_back();
        out.give(flow);
      }
      out.give(scores);
    }
    out.give(state);
  }
}

// ---- tables: sorted, joined and summed, of another length each time ------------------------

/// What a sort takes: keys and places, both twice, and room to count in. Two columns stay.
blocks sort_table(script& out, dice& draw, number rows) {
  blocks sorted = {out.take(rows * 8), out.take(rows * 8)};
  blocks other = {out.take(rows * 8), out.take(rows * 8)};
  out.touch(draw.between(1, 4) << 20);
  out.give(other);
  return sorted;
}

void join_tables(script& out, dice& draw, number rows_max) {
  blocks kept;
  for (number query = 1; query <= 240; ++query) {
    if (query % 10 == 1) out.iteration(query / 10 + 1);
    const number left_rows = draw.between(rows_max / 10, rows_max);
    const number right_rows = left_rows / draw.between(2, 8);
    blocks left = {out.take(left_rows * 8), out.take(left_rows * 8)};
    blocks right = {out.take(right_rows * 8), out.take(right_rows * 8)};
    blocks order = sort_table(out, draw, left_rows);
    const number places = out.take(right_rows * 24);
    const number matches = left_rows * draw.between(3, 16) / 10;
    blocks pairs = {out.take(matches * 8), out.take(matches * 8)};
    out.give(places);
    out.give(order);
    blocks joined;
    for (int column = 0; column < 3; ++column) joined.push_back(out.take(matches * 8));
    out.give(pairs);
    out.give(left);
    out.give(right);
    blocks groups = sort_table(out, draw, matches);
    kept.push_back(out.take(draw.small(1'000, rows_max / 10) * 8));
    out.give(joined);
    out.give(groups);
    while (kept.size() > 12) {
      const auto gone = kept.begin() + static_cast<std::ptrdiff_t>(draw.next() % kept.size());
      out.give(*gone);
      kept.erase(gone);
    }
  }
}

void join_large_tables(script& out, dice& draw) { join_tables(out, draw, 100'000'000); }
void join_small_tables(script& out, dice& draw) { join_tables(out, draw, 4'000'000); }

// ---- a network on whole graphs: each step another graph, messages along every edge ----------

void pass_messages(script& out, dice& draw) {
  constexpr number hidden = 256;
  constexpr number layers = 3;
  for (number layer = 0; layer < 3 * layers; ++layer) (void)out.take(hidden * hidden * 8);
  for (number step = 1; step <= 240; ++step) {
    if (step % 10 == 1) out.iteration(step / 10 + 1);
    const number nodes = draw.between(20'000, 120'000);
    const number edges = nodes * draw.between(4, 16);
    blocks graph = {out.take(nodes * hidden * 4), out.take(edges * 16)};
    blocks kept;
    for (number layer = 0; layer < layers; ++layer) {
      const number messages = out.take(edges * hidden * 4);
      const number sums = out.take(nodes * hidden * 4);
      out.touch(edges * 4);
      kept.insert(kept.end(), {messages, sums, out.take(nodes * hidden * 4)});
    }
    number flow = out.take(nodes * hidden * 4);
    while (!kept.empty()) {
      const bool at_edges = kept.size() % 3 == 1;
      const number next = out.take((at_edges ? edges : nodes) * hidden * 4);
      out.give(kept.back());
      kept.pop_back();
      out.give(flow);
      flow = next;
    }
    out.give(flow);
    out.give(graph);
  }
}

// ---- the list -------------------------------------------------------------------------

struct entry {
  trace_kind kind;
  void (*write)(script&, dice&);
};
constexpr std::array<entry, 8> entries = {{
    {{"pictures", "draws pictures of any size from text; a decoder of large blocks, outputs kept"},
     draw_pictures},
    {{"vision", "trains a vision transformer; gradients stay, half of the layers run twice"},
     train_on_pictures},
    {{"serving", "serves texts: a cache in pages of 2 MiB, prompts of any length, adapters"},
     serve_texts},
    {{"graphs", "learns on graphs: neighbourhoods of any size, features kept for a while"},
     train_on_graphs},
    {{"scoring", "generates, scores and trains in turns; models are moved in and out"},
     train_on_scores},
    {{"tables", "sorts and joins tables, each query of other lengths: few, large requests"},
     join_large_tables},
    {{"queries", "the same on small tables: less than half a GiB live at a time"},
     join_small_tables},
    {{"network", "learns on whole graphs, each step another one: few, large requests"},
     pass_messages},
}};

}  // namespace

std::span<const trace_kind> trace_kinds() noexcept {
  static constexpr std::array<trace_kind, entries.size()> kinds = [] {
    std::array<trace_kind, entries.size()> out{};
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = entries[i].kind;
    return out;
  }();
  return kinds;
}

std::string generate_trace(const std::string& kind, std::uint64_t seed) {
  for (const entry& each : entries) {
    if (kind != each.kind.name) continue;
    script out;
    dice draw(seed);
    each.write(out, draw);
    return out.text();
  }
  return "";
}

}  // namespace vmm::tools
