#include "objects_simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "canaries.h"
#include "runtime/base/random.h"
#include "scheduler/objects/object_store.h"

namespace troupe::simulation {
namespace {

using scheduler::ObjectEffect;
using scheduler::ObjectStore;
using scheduler::ProcessKey;
using scheduler::SegmentKey;
using Message = wire::ObjectMessage;

constexpr std::uint64_t kSlotBytes = 50;     // of a small object
constexpr std::uint64_t kSlabBytes = 100;    // two of them
constexpr std::uint64_t kMemoryBytes = 600;  // of a node's store
constexpr int kQuietRoundsMax = 4000;

struct KnownObject {
  int node;  // its home
  std::uint64_t bytes;
};

// A process's half, as actors/objects does it.
struct ObjectProcess {
  struct Mapped {
    std::uint64_t bytes = 0;
    bool own = false;
    bool closed = false;                 // own: nothing is put into it any more
    std::map<std::uint64_t, bool> used;  // own: by offset
    int views = 0;
  };
  struct Open {  // a request
    enum class Kind { kSegment, kHold, kGet } kind;
    std::uint64_t bytes = 0;  // kSegment: of the object that is to be put
    ObjectId object = {};
    std::function<void()> held = {};     // kHold
    std::set<SegmentKey> unmapped = {};  // kGet: meanwhile
  };
  int node = 0;
  ProcessKey key = 0;
  bool alive = true;
  std::map<ObjectId, int> references;
  std::map<ObjectId, int> pinned;  // of those: of views, reads, and messages to others
  std::map<ObjectId, std::pair<SegmentKey, std::uint64_t>>
      own;  // that it put, and may give up itself
  std::set<ObjectId> shared;
  std::set<ObjectId> excused;  // whose sender died before anybody else held it
  std::map<SegmentKey, Mapped> mapped;
  std::map<std::uint64_t, Open> open;
  std::vector<std::pair<SegmentKey, ObjectId>> views;
  std::uint64_t next_request = 1;
  std::vector<ObjectId> released, unshared;  // let go, and the store has not been told yet
  std::deque<Message> to_store;
  std::deque<std::pair<Message, SegmentKey>> answers, notices;
};

struct StoreNode {
  std::unique_ptr<ObjectStore> store;
  NodeId id;
  bool alive = true;
  std::map<SegmentKey, std::map<std::uint64_t, ObjectId>> content;
  std::set<SegmentKey> fetching;
  struct Reader {  // another node's
    int node;
    std::function<void(const wire::ObjectAnswer&)> answer;
  };
  std::map<ProcessKey, Reader> readers;
};

// A transfer, a write to disk, a notice of a loss: whatever takes its time.
struct LaterStep {
  int node;
  std::function<bool()> step;  // true: it is done
};

class ObjectWorld {
 public:
  explicit ObjectWorld(const ObjectsOptions& options)
      : options_(options), random_(options.seed), canary_(options.canary) {}
  ObjectsResult run();

 private:
  bool chance(std::uint64_t of) { return random_.below(of) == 0; }
  template <typename... A>
  void trace(fmt::format_string<A...> format, A&&... arguments) {
    const std::string line = fmt::format(format, std::forward<A>(arguments)...);
    for (const char c : line) {
      result_.trace_hash = (result_.trace_hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    }
    ++result_.events;
    if (options_.trace) fmt::print("{:6} ms  {}\n", now_ms_, line);
  }
  void violate(std::string what) {
    if (result_.violation.empty()) result_.violation = std::move(what);
  }
  TimePoint now() const { return TimePoint{} + std::chrono::milliseconds(now_ms_ + 1); }

  void start();
  void act();
  void put(ObjectProcess& process);
  void place(ObjectProcess& process, ObjectId id, SegmentKey key, std::uint64_t offset,
             std::uint64_t bytes);
  void pass(ObjectProcess& from);
  void let_go(ObjectProcess& process, ObjectId id);
  void tell_released(ObjectProcess& process);
  void tell_store(ObjectProcess& process, Message message) {
    tell_released(process);
    process.to_store.push_back(std::move(message));
  }
  void pin(ObjectProcess& process, ObjectId id) {
    ++process.references[id];
    ++process.pinned[id];
  }
  void unpin(ObjectProcess& process, ObjectId id) {
    --process.pinned[id];
    let_go(process, id);
  }
  void read(ObjectProcess& process);
  void fault();
  void kill(ObjectProcess& process);
  void lose_node(int node);
  void hear_of_loss(int node, int lost);

  bool deliver();
  void from_store(ObjectProcess& process, const Message& message, SegmentKey segment);
  void on_answer(ObjectProcess& process, const wire::ObjectAnswer& answer);
  void revoke(ObjectProcess& process, const wire::RevokeSegments& revoke);
  void carry_out(int node);
  void check_unread(int node, SegmentKey segment);
  void connect(int borrower, int home);
  void cut(int borrower, int home);
  void fetch(int node, const ObjectEffect& effect);
  void settle(int node);
  void read_all(int node, bool others = false);
  void check(int node);
  bool quiet() const;
  void finish();

  ObjectProcess& process_of(ProcessKey key) { return *processes_.at(key); }
  ObjectProcess* any_process(int node = -1);

  const ObjectsOptions options_;
  SeededRandom random_;
  PlantedCanary canary_;
  ObjectsResult result_;
  std::int64_t now_ms_ = 0;
  std::vector<StoreNode> nodes_;
  std::map<ProcessKey, std::unique_ptr<ObjectProcess>> processes_;
  // From a borrower to a home, and the answers.
  struct Link {
    bool up = false;
    std::deque<Message> forth, back;
  };
  std::map<std::pair<int, int>, Link> links_;
  std::vector<LaterStep> later_;
  std::map<ObjectId, KnownObject> puts_;
  ProcessKey next_key_ = 1;
  int faults_ = 0;
  bool finishing_ = false;
};

wire::Endpoint endpoint_of(int node) { return {"n", static_cast<std::uint16_t>(node + 1), {}}; }

void ObjectWorld::start() {
  const int count = options_.nodes > 0 ? options_.nodes : 2 + static_cast<int>(random_.below(4));
  faults_ = options_.faults >= 0 ? options_.faults : static_cast<int>(random_.below(8));
  for (int i = 0; i < count; ++i) {
    StoreNode node;
    node.id = NodeId{1, static_cast<std::uint64_t>(i + 1)};
    node.store = std::make_unique<ObjectStore>(
        scheduler::ObjectStoreConfig{.node_id = node.id,
                                     .endpoint = endpoint_of(i),
                                     .node_name = fmt::format("n{}", i),
                                     .memory_max_bytes = kMemoryBytes,
                                     // Small ones come back together under every other seed.
                                     .alone_bytes = options_.seed % 2 == 0 ? kSlotBytes : 100,
                                     .spare_bytes = 1});
    nodes_.push_back(std::move(node));
  }
  for (int i = 0; i < count * 3; ++i) {
    auto process = std::make_unique<ObjectProcess>();
    process->node = i % count;
    process->key = next_key_++;
    nodes_[static_cast<std::size_t>(process->node)].store->process_joined(
        process->key, fmt::format("p{}", process->key));
    processes_.emplace(process->key, std::move(process));
  }
}

ObjectProcess* ObjectWorld::any_process(int node) {
  std::vector<ObjectProcess*> alive;
  for (auto& [key, process] : processes_) {
    if (process->alive && (node < 0 || process->node == node)) alive.push_back(process.get());
  }
  return alive.empty() ? nullptr : alive[random_.below(alive.size())];
}

// --- what processes do ---------------------------------------------------------------------------

void ObjectWorld::act() {
  ObjectProcess* const process = any_process();
  if (process == nullptr) return;
  if (!process->views.empty() && chance(3)) {
    const std::size_t which = random_.below(process->views.size());
    const auto [segment, id] = process->views[which];
    process->views.erase(process->views.begin() + static_cast<std::ptrdiff_t>(which));
    trace("p{} ends its view of {}", process->key, id.low);
    --process->mapped[segment].views;
    unpin(*process, id);
    return;
  }
  switch (random_.below(5)) {
    case 0:
    case 1:
      return put(*process);
    case 2:
      return pass(*process);
    case 3:
      return read(*process);
    default:
      if (!process->references.empty()) {
        auto it = process->references.begin();
        std::advance(it, static_cast<std::ptrdiff_t>(random_.below(process->references.size())));
        if (it->second > process->pinned[it->first]) let_go(*process, ObjectId(it->first));
      }
  }
}

void ObjectWorld::put(ObjectProcess& process) {
  const bool is_small = chance(2);
  const std::uint64_t bytes = is_small ? kSlotBytes : 100 + 50 * random_.below(3);
  for (auto& [key, mapped] : process.mapped) {
    if (!mapped.own || mapped.closed) continue;
    if (is_small != (mapped.bytes == kSlabBytes) || mapped.bytes < bytes) continue;
    for (auto& [offset, used] : mapped.used) {
      if (used) continue;
      const ObjectId id{2, puts_.size() + 1};
      return place(process, id, key, offset, bytes);
    }
  }
  for (const auto& [request, open] : process.open) {
    if (open.kind == ObjectProcess::Open::Kind::kSegment) return;
  }
  const std::uint64_t request = process.next_request++;
  process.open[request] = {.kind = ObjectProcess::Open::Kind::kSegment, .bytes = bytes};
  tell_store(process, Message(wire::NewSegment{
                          .request = request,
                          .bytes = is_small ? kSlabBytes : std::max<std::uint64_t>(bytes, 101)}));
}

void ObjectWorld::place(ObjectProcess& process, ObjectId id, SegmentKey key, std::uint64_t offset,
                        std::uint64_t bytes) {
  process.mapped[key].used[offset] = true;
  nodes_[static_cast<std::size_t>(process.node)].content[key][offset] = id;
  puts_[id] = {process.node, bytes};
  process.references[id] = 1;
  process.own[id] = {key, offset};
  ++result_.puts;
  trace("p{} puts {}", process.key, id.low);
  tell_store(process,
             Message(wire::PutObject{
                 .object_id = id, .place = {.segment = key, .offset = offset}, .bytes = bytes}));
}

void ObjectWorld::pass(ObjectProcess& from) {
  if (from.references.empty()) return;
  auto it = from.references.begin();
  std::advance(it, static_cast<std::ptrdiff_t>(random_.below(from.references.size())));
  const ObjectId id = it->first;
  ObjectProcess* const to = any_process();
  if (to == &from) return;
  ++result_.passed;
  pin(from, id);  // for the message
  from.shared.insert(id);
  trace("p{} passes {} to p{}", from.key, id.low, to->key);
  const ProcessKey sender = from.key;
  const auto taken = [this, sender, id] {
    if (ObjectProcess& p = process_of(sender); p.alive) unpin(p, id);
  };
  if (to->references.contains(id)) {
    ++to->references[id];
    return taken();
  }
  const ProcessKey receiver = to->key;
  const bool excused = from.excused.contains(id);
  const auto held = [this, receiver, sender, id, taken, excused] {
    ObjectProcess& r = process_of(receiver);
    ++r.references[id];
    if (excused || !process_of(sender).alive) r.excused.insert(id);
    taken();
  };
  // One that is being taken already is not taken again: letting go of it would let go of both.
  for (auto& [request, open] : to->open) {
    if (open.kind != ObjectProcess::Open::Kind::kHold || open.object != id) continue;
    open.held = [first = open.held, held] {
      first();
      held();
    };
    return;
  }
  const KnownObject& put = puts_.at(id);
  wire::ObjectRecord record{.object_id = id,
                            .home = nodes_[static_cast<std::size_t>(put.node)].id,
                            .home_endpoint = endpoint_of(put.node),
                            .bytes = put.bytes};
  const bool local = put.node == to->node || options_.canary == "borrows-without-waiting";
  const std::uint64_t request = local ? 0 : to->next_request++;
  tell_store(*to, Message(wire::HoldObjects{.request = request, .objects = {record}}));
  if (local) return held();
  to->open[request] = {.kind = ObjectProcess::Open::Kind::kHold, .object = id, .held = held};
}

void ObjectWorld::let_go(ObjectProcess& process, ObjectId id) {
  const auto held = process.references.find(id);
  if (held == process.references.end() || --held->second > 0) return;
  process.references.erase(held);
  process.excused.erase(id);
  std::vector<ObjectId>* ids = &process.released;
  const auto own = process.own.find(id);
  if (own != process.own.end()) {
    const auto [segment, offset] = own->second;
    const auto mapped = process.mapped.find(segment);
    if (!process.shared.contains(id) && mapped != process.mapped.end()) {
      ids = &process.unshared;
      mapped->second.used[offset] = false;
    }
    process.own.erase(own);
  }
  process.shared.erase(id);
  trace("p{} lets go of {}", process.key, id.low);
  ids->push_back(id);
}

void ObjectWorld::tell_released(ObjectProcess& process) {
  for (auto* ids : {&process.unshared, &process.released}) {
    if (ids->empty()) continue;
    process.to_store.emplace_back(wire::ReleaseObjects{.objects = std::exchange(*ids, {}),
                                                       .unshared = ids == &process.unshared});
  }
}

void ObjectWorld::read(ObjectProcess& process) {
  if (process.references.empty()) return;
  auto it = process.references.begin();
  std::advance(it, static_cast<std::ptrdiff_t>(random_.below(process.references.size())));
  const ObjectId id = it->first;
  pin(process, id);  // for the request, then for the view
  const std::uint64_t request = process.next_request++;
  process.open[request] = {.kind = ObjectProcess::Open::Kind::kGet, .object = id};
  trace("p{} reads {}", process.key, id.low);
  tell_store(process,
             Message(wire::GetObject{.request = request, .object_id = id, .others_max = 3}));
}

// --- faults --------------------------------------------------------------------------------------

void ObjectWorld::fault() {
  if (faults_ == 0) return;
  --faults_;
  std::size_t alive = 0;
  for (const StoreNode& node : nodes_) alive += node.alive;
  if (alive > 2 && chance(3)) {
    std::vector<int> candidates;
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].alive) candidates.push_back(static_cast<int>(i));
    }
    return lose_node(candidates[random_.below(candidates.size())]);
  }
  if (chance(2) && !links_.empty()) {
    auto it = links_.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(random_.below(links_.size())));
    if (it->second.up) return cut(it->first.first, it->first.second);
  }
  ObjectProcess* const process = any_process();
  if (process != nullptr) kill(*process);
}

void ObjectWorld::kill(ObjectProcess& process) {
  trace("p{} dies", process.key);
  ++result_.process_deaths;
  process.alive = false;  // (what it has sent is read still)
  process.answers.clear();
  process.notices.clear();
  const int node = process.node;
  const ProcessKey key = process.key;
  // What it was to take from others they may let go of.
  for (auto& [request, open] : std::exchange(process.open, {})) {
    if (open.kind == ObjectProcess::Open::Kind::kHold) open.held();
  }
  if (!nodes_[static_cast<std::size_t>(node)].alive) return;
  later_.push_back({node, [this, node, key] {
                      if (!process_of(key).to_store.empty() || !chance(4)) return false;
                      nodes_[static_cast<std::size_t>(node)].store->process_gone(key);
                      carry_out(node);
                      return true;
                    }});
}

void ObjectWorld::lose_node(int lost) {
  trace("n{} is lost", lost);
  ++result_.node_losses;
  StoreNode& node = nodes_[static_cast<std::size_t>(lost)];
  node.alive = false;
  for (auto& [key, process] : processes_) {
    if (process->node == lost && process->alive) kill(*process);
  }
  std::erase_if(later_, [&](const LaterStep& later) { return later.node == lost; });
  for (auto& [ends, link] : links_) {
    if (ends.first == lost || ends.second == lost) link = {};
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].alive) continue;
    hear_of_loss(static_cast<int>(i), lost);
    for (const auto& [key, reader] : std::map(nodes_[i].readers)) {
      if (reader.node != lost) continue;
      nodes_[i].readers.erase(key);
      nodes_[i].store->process_gone(key);
      carry_out(static_cast<int>(i));
    }
  }
}

void ObjectWorld::hear_of_loss(int node, int lost) {
  later_.push_back({node, [this, node, lost] {
                      if (!chance(8)) return false;
                      ObjectStore& store = *nodes_[static_cast<std::size_t>(node)].store;
                      store.home_gone(nodes_[static_cast<std::size_t>(lost)].id, now());
                      store.borrower_gone(nodes_[static_cast<std::size_t>(lost)].id);
                      trace("n{} hears that n{} is lost", node, lost);
                      carry_out(node);
                      return true;
                    }});
}

// --- messages ------------------------------------------------------------------------------------

std::string ids_of(const Message& message) {
  std::string text;
  const auto add = [&](const ObjectId& id) { text += fmt::format(" {}", id.low); };
  if (const auto* m = get_if<wire::BorrowObjects>(&message)) std::ranges::for_each(m->objects, add);
  if (const auto* m = get_if<wire::ObjectsBorrowed>(&message)) {
    text = "unknown:";
    std::ranges::for_each(m->unknown, add);
  }
  if (const auto* m = get_if<wire::ReturnObjects>(&message)) std::ranges::for_each(m->objects, add);
  if (const auto* m = get_if<wire::FindSource>(&message)) add(m->object_id);
  if (const auto* m = get_if<wire::CopyChanged>(&message)) add(m->object_id);
  return text;
}

// One message of one queue; false where there is none.
bool ObjectWorld::deliver() {
  std::vector<std::function<void()>> ready;
  for (auto& [key, held] : processes_) {
    ObjectProcess* const process = held.get();
    if (!nodes_[static_cast<std::size_t>(process->node)].alive) continue;
    if (process->alive && process->released.size() + process->unshared.size() > 0) {
      ready.emplace_back([this, process] { tell_released(*process); });
    }
    if (!process->to_store.empty()) {
      ready.emplace_back([this, process] {
        const Message message = std::move(process->to_store.front());
        process->to_store.pop_front();
        ObjectStore& store = *nodes_[static_cast<std::size_t>(process->node)].store;
        const Status status = store.on_process(process->key, message, now());
        if (!status.ok()) violate("a process was refused: " + status.to_string());
        carry_out(process->node);
      });
    }
    for (auto* queue : {&process->answers, &process->notices}) {
      if (queue->empty() || !process->alive) continue;
      ready.emplace_back([this, process, queue] {
        const auto [message, segment] = std::move(queue->front());
        queue->pop_front();
        from_store(*process, message, segment);
      });
    }
  }
  for (auto& [ends, link] : links_) {
    for (auto* queue : {&link.forth, &link.back}) {
      const int sender = queue == &link.forth ? ends.first : ends.second;
      const int receiver = queue == &link.forth ? ends.second : ends.first;
      if (queue->empty() || !nodes_[static_cast<std::size_t>(receiver)].alive) continue;
      ready.emplace_back([this, queue, sender, receiver] {
        const Message message = std::move(queue->front());
        queue->pop_front();
        if (get_if<wire::BorrowObjects>(&message) != nullptr) read_all(receiver);
        trace("n{} hears message {} of n{}: {}", receiver, message.index(), sender,
              ids_of(message));
        nodes_[static_cast<std::size_t>(receiver)].store->on_peer(
            nodes_[static_cast<std::size_t>(sender)].id, endpoint_of(sender), message, now());
        carry_out(receiver);
      });
    }
  }
  if (ready.empty()) return false;
  ready[random_.below(ready.size())]();
  return true;
}

void ObjectWorld::carry_out(int at) {
  StoreNode& node = nodes_[static_cast<std::size_t>(at)];
  std::deque<ObjectEffect> effects;
  const auto take = [&] {
    for (ObjectEffect& effect : node.store->take_effects()) effects.push_back(std::move(effect));
  };
  for (take(); !effects.empty(); take()) {
    ObjectEffect effect = std::move(effects.front());
    effects.pop_front();
    const SegmentKey segment = effect.segment;
    switch (effect.kind) {
      case ObjectEffect::Kind::kTellProcess: {
        const auto reader = node.readers.find(effect.process);
        if (reader != node.readers.end()) {
          if (const auto* answer = get_if<wire::ObjectAnswer>(&effect.message)) {
            const auto answered = reader->second.answer;  // it may end itself
            answered(*answer);
          }
          break;
        }
        const auto found = processes_.find(effect.process);
        if (found == processes_.end() || !found->second->alive) break;
        ObjectProcess& process = *found->second;
        (effect.reply ? process.answers : process.notices).emplace_back(effect.message, segment);
        break;
      }
      case ObjectEffect::Kind::kTellPeer: {
        const int to = static_cast<int>(effect.node.low) - 1;
        if (!nodes_[static_cast<std::size_t>(to)].alive) {
          if (!effect.reply) hear_of_loss(at, to);  // nobody answers there
          break;
        }
        if (effect.reply) {
          if (Link& link = links_[{to, at}]; link.up)
            link.back.push_back(std::move(effect.message));
        } else if (Link& link = links_[{at, to}]; link.up) {
          link.forth.push_back(std::move(effect.message));
        } else {
          connect(at, to);  // which says everything again
        }
        break;
      }
      case ObjectEffect::Kind::kCreateSegment:
        trace("n{} makes segment {} of {}", at, segment, effect.file);
        if (effect.file != 0) check_unread(at, effect.file);
        node.content[segment];
        break;
      case ObjectEffect::Kind::kSpareSegment:
        trace("n{} keeps the memory of segment {}", at, segment);
        later_.push_back({at, [this, at, segment] {
                            if (!chance(3)) return false;
                            nodes_[static_cast<std::size_t>(at)].store->drop_spare(segment);
                            carry_out(at);
                            return true;
                          }});
        break;
      case ObjectEffect::Kind::kDropSegment:
        check_unread(at, segment);
        trace("n{} drops segment {}", at, segment);
        node.content.erase(segment);
        node.fetching.erase(segment);
        break;
      case ObjectEffect::Kind::kSpill: {
        ++result_.spills;
        check_unread(at, segment);
        const bool fails = faults_ > 0 && chance(10);
        later_.push_back(
            {at, [this, at, segment, fails] {
               if (!chance(3)) return false;
               nodes_[static_cast<std::size_t>(at)].store->spilled(
                   segment, fails ? Status(Code::kResourceExhausted, "the disk is full") : Status(),
                   now());
               carry_out(at);
               return true;
             }});
        break;
      }
      case ObjectEffect::Kind::kRestore: {
        ++result_.restores;
        trace("n{} reads segment {} from {}", at, segment, effect.file);
        for (const auto& piece : effect.pieces) {
          node.content[segment][piece.to] = node.content[effect.file][piece.from];
        }
        later_.push_back({at, [this, at, segment] {
                            if (!chance(3)) return false;
                            nodes_[static_cast<std::size_t>(at)].store->restored(segment, {});
                            carry_out(at);
                            return true;
                          }});
        break;
      }
      case ObjectEffect::Kind::kForgetMemory:
        break;
      case ObjectEffect::Kind::kFetch:
        fetch(at, effect);
        break;
    }
  }
  check(at);
}

// Nobody reads what is taken away.
void ObjectWorld::check_unread(int at, SegmentKey segment) {
  for (const auto& [key, process] : processes_) {
    if (!process->alive || process->node != at) continue;
    const auto mapped = process->mapped.find(segment);
    if (mapped == process->mapped.end() || mapped->second.views == 0) continue;
    violate(fmt::format("n{} takes segment {} away, which p{} reads", at, segment, key));
  }
}

void ObjectWorld::connect(int borrower, int home) {
  Link& link = links_[{borrower, home}];
  link.up = true;
  wire::StoreHello hello;
  hello.node_id = nodes_[static_cast<std::size_t>(borrower)].id;
  link.forth.emplace_back(std::move(hello));
  nodes_[static_cast<std::size_t>(borrower)].store->connected(
      nodes_[static_cast<std::size_t>(home)].id);
}

// What is on its way is lost.
void ObjectWorld::cut(int borrower, int home) {
  trace("the connection of n{} to n{} is cut", borrower, home);
  ++result_.cuts;
  links_[{borrower, home}] = {};
  later_.push_back({borrower, [this, borrower, home] {
                      if (!chance(4)) return false;
                      if (!nodes_[static_cast<std::size_t>(home)].alive) return true;
                      if (!links_[{borrower, home}].up) connect(borrower, home);
                      carry_out(borrower);
                      return true;
                    }});
}

void ObjectWorld::fetch(int at, const ObjectEffect& effect) {
  ++result_.fetches;
  const ObjectId id = effect.object;
  const SegmentKey segment = effect.segment;
  struct Transfer {
    std::vector<int> from;  // the last one first
    bool unsure = false;    // one of them could not be asked
    bool begun = false;
    bool located = false;
    std::optional<Status> failed;
    ProcessKey reader = 0;
    wire::ObjectPlace place;
  };
  auto transfer = std::make_shared<Transfer>();
  if (!effect.node.empty()) {
    transfer->from = {effect.endpoint.port - 1};
  } else {
    for (int i = 0; i < static_cast<int>(nodes_.size()); ++i)
      if (i != at && nodes_[static_cast<std::size_t>(i)].alive) transfer->from.push_back(i);
  }
  const bool is_orphan = effect.node.empty();
  trace("n{} fetches {} from {}", at, id.low,
        is_orphan ? "whoever has it" : fmt::format("n{}", transfer->from.back()));
  nodes_[static_cast<std::size_t>(at)].fetching.insert(segment);
  later_.push_back(
      {at, [=, this] {
         if (!chance(3)) return false;
         StoreNode& here = nodes_[static_cast<std::size_t>(at)];
         if (transfer->from.empty()) {
           here.store->fetched(id, segment, Status(Code::kObjectLost, "nobody has it"));
           carry_out(at);
           return true;
         }
         const int from = transfer->from.back();
         StoreNode& source = nodes_[static_cast<std::size_t>(from)];
         const auto end = [&](Status status) {
           if (transfer->reader != 0 && source.alive) {
             source.readers.erase(transfer->reader);
             source.store->process_gone(transfer->reader);
             carry_out(from);
           }
           const bool refused = status.ok() || status.code() == Code::kObjectLost;
           transfer->unsure = transfer->unsure || (is_orphan && !refused);
           if (!status.ok() && transfer->from.size() > 1) {  // the next one may have it
             transfer->from.pop_back();
             *transfer = Transfer{.from = transfer->from, .unsure = transfer->unsure};
             return false;
           }
           if (!status.ok() && transfer->unsure)
             status = Status(Code::kUnavailable, "not all could be asked");
           if (status.ok()) {
             if (puts_.at(id).node != from) ++result_.fetches_from_copies;
             if (is_orphan) ++result_.orphans_found;
             here.content[segment][0] = id;
             here.fetching.erase(segment);
           }
           here.store->fetched(id, segment, std::move(status));
           carry_out(at);
           return true;
         };
         if (!here.fetching.contains(segment)) {  // dropped meanwhile
           if (transfer->reader != 0 && source.alive) {
             source.readers.erase(transfer->reader);
             source.store->process_gone(transfer->reader);
             carry_out(from);
           }
           return true;
         }
         if (!source.alive) return end(Status(Code::kUnavailable, "the source is gone"));
         if (!transfer->begun) {
           transfer->begun = true;
           transfer->reader = next_key_++;
           source.readers[transfer->reader] = {at, [transfer](const wire::ObjectAnswer& answer) {
                                                 if (answer.pending) return;
                                                 transfer->located = answer.status.ok();
                                                 transfer->place = answer.place;
                                                 if (!answer.status.ok())
                                                   transfer->failed = answer.status;
                                               }};
           source.store->reader_joined(transfer->reader, "reader", is_orphan);
           (void)source.store->on_process(
               transfer->reader, Message(wire::GetObject{.request = 1, .object_id = id}), now());
           carry_out(from);
           return false;
         }
         if (transfer->failed) return end(*transfer->failed);
         if (!transfer->located) return false;
         const auto content = source.content.find(transfer->place.segment);
         if (content == source.content.end())
           return end(Status(Code::kUnavailable, "it was dropped"));
         if (source.fetching.contains(transfer->place.segment))
           return false;  // it comes there, too
         if (content->second[transfer->place.offset] != id) {
           violate(fmt::format(
               "n{} was given other bytes than those of {}: {} of segment {} at {} of n{}", at,
               id.low, content->second[transfer->place.offset].low, transfer->place.segment,
               transfer->place.offset, from));
         }
         return end({});
       }});
}

// Frees what nobody holds, when everything that was sent has been read.
void ObjectWorld::settle(int at) {
  StoreNode& node = nodes_[static_cast<std::size_t>(at)];
  if (!node.alive || !node.store->wants_settling()) return;
  node.store->begin_settling();
  if (options_.canary != "frees-before-it-has-read") read_all(at, !finishing_);
  if (options_.canary == "frees-what-came-meanwhile") node.store->begin_settling();
  node.store->settle();
  carry_out(at);
}

// What processes have sent by now. With `others` they go on meanwhile.
void ObjectWorld::read_all(int at, bool others) {
  for (auto& [key, process] : processes_) {
    if (process->node != at) continue;
    while (others && chance(2)) act();
    for (const Message& message : std::exchange(process->to_store, {})) {
      const Status status =
          nodes_[static_cast<std::size_t>(at)].store->on_process(key, message, now());
      if (!status.ok()) violate("a process was refused: " + status.to_string());
    }
  }
  carry_out(at);
}

void ObjectWorld::from_store(ObjectProcess& process, const Message& message, SegmentKey segment) {
  if (const auto* answer = get_if<wire::ObjectAnswer>(&message)) {
    if (answer->has_descriptor && segment != 0) {
      process.mapped[segment].bytes = answer->segment_bytes;
    }
    on_answer(process, *answer);
  } else if (const auto* revoked = get_if<wire::RevokeSegments>(&message)) {
    revoke(process, *revoked);
  } else if (const auto* freed = get_if<wire::ObjectsFreed>(&message)) {
    for (const auto& place : freed->places) {
      const auto mapped = process.mapped.find(place.segment);
      if (mapped != process.mapped.end()) mapped->second.used[place.offset] = false;
    }
  }
}

void ObjectWorld::on_answer(ObjectProcess& process, const wire::ObjectAnswer& answer) {
  if (answer.pending) return;
  const auto found = process.open.find(answer.request);
  if (found == process.open.end()) return violate("a request was answered twice");
  const ObjectProcess::Open open = std::move(found->second);
  process.open.erase(found);
  const bool no_room = answer.status.code() == Code::kResourceExhausted;
  if (no_room) ++result_.no_room;
  switch (open.kind) {
    case ObjectProcess::Open::Kind::kSegment: {
      if (no_room) return;
      if (!answer.status.ok()) return violate("no segment: " + answer.status.to_string());
      ObjectProcess::Mapped& mapped = process.mapped[answer.place.segment];
      mapped.own = true;
      mapped.used[0] = false;
      if (mapped.bytes == kSlabBytes) mapped.used[kSlotBytes] = false;
      return place(process, ObjectId{2, puts_.size() + 1}, answer.place.segment, 0, open.bytes);
    }
    case ObjectProcess::Open::Kind::kHold:
      return open.held();
    case ObjectProcess::Open::Kind::kGet:
      break;
  }
  const ObjectId id = open.object;
  if (!answer.status.ok()) {
    const bool home_lost = !nodes_[static_cast<std::size_t>(puts_.at(id).node)].alive;
    if (answer.status.code() == Code::kObjectLost) {
      ++result_.lost;
      if (!home_lost && !process.excused.contains(id)) {
        violate(fmt::format("p{} holds {} and could not read it: {}", process.key, id.low,
                            answer.status.to_string()));
      }
      for (const StoreNode& node : nodes_) {
        if (!node.alive || !node.store->has(id) || process.excused.contains(id)) continue;
        for (const auto& [segment, objects] : node.content) {
          if (node.fetching.contains(segment)) continue;
          for (const auto& [offset, there] : objects)
            if (there == id)
              violate(fmt::format("p{} was told that {} is lost, and {} has it", process.key,
                                  id.low, node.id));
        }
      }
    } else if (!no_room && !(home_lost && answer.status.code() == Code::kUnavailable)) {
      violate("a read failed: " + answer.status.to_string());
    }
    return unpin(process, id);
  }
  if (open.unmapped.contains(answer.place.segment)) {  // the answer was on its way then
    const std::uint64_t request = process.next_request++;
    process.open[request] = {.kind = ObjectProcess::Open::Kind::kGet, .object = id};
    tell_store(process, Message(wire::GetObject{.request = request, .object_id = id}));
    return;
  }
  ++result_.reads;
  trace("p{} has read {} in segment {}", process.key, id.low, answer.place.segment);
  const auto mapped = process.mapped.find(answer.place.segment);
  if (mapped == process.mapped.end()) return violate("a place in a segment that is not mapped");
  const auto& content =
      nodes_[static_cast<std::size_t>(process.node)].content[answer.place.segment];
  const auto bytes = content.find(answer.place.offset);
  if (bytes == content.end() || bytes->second != id) {
    violate(fmt::format("p{} reads {} and finds other bytes in segment {} of n{}", process.key,
                        id.low, answer.place.segment, process.node));
  }
  for (std::size_t i = 0; i < answer.others.size(); ++i) {
    const ObjectId& other = answer.others[i];
    if (!process.references.contains(other)) continue;  // let go of meanwhile
    const auto told = content.find(answer.other_offsets[i]);
    if (told == content.end() || told->second != other)
      violate(
          fmt::format("p{} is told that {} lies where other bytes are", process.key, other.low));
  }
  ++mapped->second.views;
  process.views.emplace_back(answer.place.segment, id);
}

void ObjectWorld::revoke(ObjectProcess& process, const wire::RevokeSegments& message) {
  wire::SegmentsRevoked reply;
  for (const SegmentKey key : message.segments) {
    const auto mapped = process.mapped.find(key);
    if (mapped != process.mapped.end() && mapped->second.views > 0) {
      reply.in_use.push_back(key);
      continue;
    }
    if (mapped != process.mapped.end()) process.mapped.erase(mapped);
    for (auto& [request, open] : process.open) open.unmapped.insert(key);
    reply.unmapped.push_back(key);
  }
  trace("p{} unmaps {} and keeps {}", process.key, fmt::join(reply.unmapped, " "),
        fmt::join(reply.in_use, " "));
  tell_store(process, Message(std::move(reply)));
}

void ObjectWorld::check(int at) {
  const std::string wrong = nodes_[static_cast<std::size_t>(at)].store->inconsistency();
  if (!wrong.empty()) violate(fmt::format("n{}: {}", at, wrong));
}

// --- to the end ----------------------------------------------------------------------------------

bool ObjectWorld::quiet() const {
  for (const auto& [key, process] : processes_) {
    if (!process->alive) continue;
    if (!process->open.empty() || !process->to_store.empty()) return false;
    if (!process->answers.empty() || !process->notices.empty()) return false;
  }
  for (const auto& [ends, link] : links_) {
    if (!link.forth.empty() || !link.back.empty()) return false;
  }
  for (const StoreNode& node : nodes_) {
    if (node.alive && (node.store->wants_settling() || node.store->totals().objects > 0)) {
      return false;
    }
  }
  return later_.empty();
}

void ObjectWorld::finish() {
  finishing_ = true;
  for (int round = 0; round < kQuietRoundsMax && result_.violation.empty(); ++round) {
    now_ms_ += 20;
    for (auto& [key, process] : processes_) {
      if (!process->alive) continue;
      for (const auto& [segment, id] : std::exchange(process->views, {})) {
        --process->mapped[segment].views;
        unpin(*process, id);
      }
      if (!process->open.empty()) continue;
      for (const auto& [id, count] : std::map<ObjectId, int>(process->references)) {
        for (int i = process->pinned[id]; i < count; ++i) let_go(*process, id);
      }
    }
    while (deliver()) {
    }
    for (std::size_t i = 0; i < later_.size();) {
      const auto step = later_[i].step;  // it may add others
      if (step()) {
        later_.erase(later_.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      if (!nodes_[i].alive) continue;
      settle(static_cast<int>(i));
      nodes_[i].store->tick(now());
      carry_out(static_cast<int>(i));
    }
    if (quiet()) break;
  }
  if (!result_.violation.empty()) return;
  for (const auto& [key, process] : processes_) {
    if (process->alive && !process->open.empty()) {
      const auto& [request, open] = *process->open.begin();
      return violate(fmt::format("p{} waits for ever ({} of object {})", key,
                                 open.kind == ObjectProcess::Open::Kind::kGet    ? "a read"
                                 : open.kind == ObjectProcess::Open::Kind::kHold ? "a hold"
                                                                                 : "a new segment",
                                 open.object.low));
    }
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].alive && nodes_[i].store->totals().objects > 0) {
      return violate(fmt::format("n{} keeps {} objects that nobody holds", i,
                                 nodes_[i].store->totals().objects));
    }
  }
  if (!quiet()) violate("it does not come to rest");
}

ObjectsResult ObjectWorld::run() {
  start();
  for (int step = 0; step < options_.steps && result_.violation.empty();) {
    if (!chance(3) && deliver()) continue;
    now_ms_ += static_cast<std::int64_t>(random_.below(20));
    switch (random_.below(6)) {
      case 0: {
        if (later_.empty()) break;
        const std::size_t which = random_.below(later_.size());
        const auto step_of = later_[which].step;
        // (It may add others, behind it.)
        if (step_of()) later_.erase(later_.begin() + static_cast<std::ptrdiff_t>(which));
        break;
      }
      case 1: {
        const int node = static_cast<int>(random_.below(nodes_.size()));
        if (!nodes_[static_cast<std::size_t>(node)].alive) break;
        if (chance(2)) {
          settle(node);
        } else {
          nodes_[static_cast<std::size_t>(node)].store->tick(now());
          carry_out(node);
        }
        break;
      }
      default:
        ++step;
        if (faults_ > 0 && chance(60)) {
          fault();
        } else {
          act();
        }
    }
  }
  if (result_.violation.empty()) finish();
  result_.virtual_ms = now_ms_;
  return result_;
}

}  // namespace

ObjectsResult& ObjectsResult::operator+=(const ObjectsResult& other) {
  events += other.events;
  virtual_ms += other.virtual_ms;
  puts += other.puts;
  passed += other.passed;
  reads += other.reads;
  lost += other.lost;
  no_room += other.no_room;
  spills += other.spills;
  restores += other.restores;
  fetches += other.fetches;
  fetches_from_copies += other.fetches_from_copies;
  orphans_found += other.orphans_found;
  process_deaths += other.process_deaths;
  node_losses += other.node_losses;
  cuts += other.cuts;
  return *this;
}

ObjectsResult simulate_objects(const ObjectsOptions& options) { return ObjectWorld(options).run(); }

}  // namespace troupe::simulation
