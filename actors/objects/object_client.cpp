#include "actors/objects/object_client.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/process_stamp.h"
#include "runtime/memory/unix_socket.h"
#include "runtime/net/transport.h"
#include "runtime/process/packet_socket.h"

namespace troupe::detail {
namespace {

constexpr Duration kConnectTime = std::chrono::seconds(10);
constexpr Duration kAnswerTime = std::chrono::seconds(10);  // of what the store answers at once
// Objects of at most so many bytes share segments; those are written one after the other.
constexpr std::uint64_t kSlabBytes = 4u << 20;
constexpr std::uint64_t kSlabPart = 16;  // the largest object in one is this part of it
// What a store with little memory has in segments of small objects.
constexpr std::uint64_t kSlabsOfStore = 32;
constexpr std::uint64_t kPageBytes = 4096;
// In the number of a request for memory, so that its answer is known when nobody waits any more.
constexpr std::uint64_t kForMemory = std::uint64_t{1} << 63;
// References in a message.
constexpr std::size_t kRecordsInMessageMax = 400;
// What was let go is told when it is so many, or has waited so long.
constexpr std::size_t kReleasedInMessageMax = 1000;
constexpr Duration kReleaseDelay = std::chrono::milliseconds(1);
// A free segment is taken for an object that fills at least this part of it.
constexpr double kFilled = 0.75;

std::uint64_t rounded_up(std::uint64_t bytes, std::uint64_t to) {
  return (bytes + to - 1) / to * to;
}

Status closed_error() {
  return Status(Code::kFailedPrecondition, "the process's connection to its cluster is closed");
}

Result<std::pair<UniqueFd, UniqueFd>> packet_pair() {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return Status(Code::kResourceExhausted, "no descriptors for a connection to the object store");
  }
  return std::pair{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

}  // namespace

HeldObject::~HeldObject() {
  if (const auto client = client_.lock()) client->let_go(*this);
}

ObjectClient::Mapping::~Mapping() {
  if (data != nullptr) ::munmap(data, bytes);
}

ObjectClient::ObjectClient(ObjectClientOptions options)
    : options_(std::move(options)), object_prefix_(options_.random->next_u64()) {}

ObjectClient::~ObjectClient() { close(); }

void ObjectClient::close() {
  std::thread later;
  std::vector<std::function<void()>> unrun;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closed_, true)) return;
    later.swap(later_);
    unrun.swap(later_work_);
    disconnected_locked();
    changed_.notify_all();
  }
  if (!later.joinable()) return;
  if (later.get_id() == std::this_thread::get_id()) return later.detach();  // it is at its end
  later.join();
}

// --- the connection ------------------------------------------------------------------------------

Status ObjectClient::connect(Deadline deadline) {
  const std::lock_guard connecting(connecting_);
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return closed_error();
    if (connected_) return {};
  }
  if (!options_.environment->node_id.empty()) {
    return connect_to(options_.environment->node_id, deadline);
  }
  for (const NodeId& node : TROUPE_TRY(options_.nodes(deadline))) {
    const Status connected = connect_to(node, deadline);
    if (connected.ok() || connected.code() == Code::kProtocol) return connected;
  }
  return Status(Code::kFailedPrecondition,
                "no node of the cluster runs on this machine, and objects are in a node's memory: "
                "start one here with 'troupe start --address HEAD'");
}

Status ObjectClient::connect_to(const NodeId& node, Deadline deadline) {
  const Deadline soon = std::min(deadline, Deadline::after(kConnectTime),
                                 [](Deadline a, Deadline b) { return a.time() < b.time(); });
  const net::Address address{
      .host = {}, .port = 0, .local_name = "troupe-node-" + node.to_string()};
  auto stream =
      net::connect_blocking(address, wire::kObjectsTarget, options_.environment->token, soon);
  if (!stream.ok()) return stream.status().prefixed("the object store of this node");
  auto [requests, far_requests] = TROUPE_TRY(packet_pair());
  auto [notices, far_notices] = TROUPE_TRY(packet_pair());
  const UniqueFd socket = stream->take_socket();
  const wire::Bytes hello =
      wire::encode(wire::ObjectMessage(wire::ObjectHello{.client = options_.client_id,
                                                         .job_id = options_.job_id,
                                                         .name = options_.name,
                                                         .pid = ::getpid()}));
  const auto length = static_cast<std::uint32_t>(hello.size());
  const int fds[] = {far_requests.get(), far_notices.get()};
  TROUPE_RETURN_IF_ERROR(
      memory::send_with_fds(socket.get(), std::as_bytes(std::span(&length, 1)), fds, soon));
  TROUPE_RETURN_IF_ERROR(memory::send_all(socket.get(), hello, soon));
  far_requests.reset();
  far_notices.reset();
  auto packet = process::receive_packet(requests.get(), soon);
  if (!packet.ok()) return packet.status().prefixed("the object store of this node");
  auto message = TROUPE_TRY(wire::decode_object(packet->bytes));
  auto* welcome = get_if<wire::ObjectWelcome>(&message);
  if (welcome == nullptr) return Status(Code::kProtocol, "not the answer of an object store");
  TROUPE_RETURN_IF_ERROR(welcome->status);
  std::uint64_t number = 0;
  int fd = -1;
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return closed_error();
    requests_ = std::move(requests);
    notices_ = std::move(notices);
    store_ = std::move(*welcome);
    number = ++connection_;
    connected_ = true;
    fd = notices_.get();
  }
  net::EventLoop& loop = *options_.environment->loop;
  loop.post([&loop, fd, number, weak = weak_from_this()] {
    if (weak.expired()) return;
    loop.watch_readable(fd, [weak, number, &loop, fd] {
      if (const auto self = weak.lock()) {
        self->on_notices(number);
      } else {
        loop.unwatch(fd);
      }
    });
  });
  return {};
}

void ObjectClient::disconnected_locked() {
  if (!connected_) return;
  connected_ = false;
  // The loop watches it: it goes there.
  net::EventLoop& loop = *options_.environment->loop;
  auto notices = std::make_shared<UniqueFd>(std::move(notices_));
  loop.post([&loop, notices] {
    loop.unwatch(notices->get());
    notices->reset();
  });
  requests_.reset();
  own_.clear();
  segments_.clear();  // views keep theirs
  released_.clear();
  unshared_.clear();
  for (auto& [request, waiting] : waiting_) {
    waiting.done = true;
    waiting.answer.status = Status(Code::kUnavailable, "the object store of this node has ended");
  }
  changed_.notify_all();
}

bool ObjectClient::send_locked(const wire::ObjectMessage& message) {
  return send_released_locked() && send_now_locked(message);
}

bool ObjectClient::send_released_locked() {
  for (std::vector<ObjectId>* const ids : {&unshared_, &released_}) {
    if (ids->empty()) continue;
    wire::ReleaseObjects release{.objects = std::exchange(*ids, {}), .unshared = ids == &unshared_};
    if (!send_now_locked(wire::ObjectMessage(std::move(release)))) return false;
  }
  return true;
}

void ObjectClient::send_released_soon_locked() {
  if (std::exchange(sending_released_soon_, true)) return;
  options_.environment->loop->call_after(kReleaseDelay, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    const std::lock_guard lock(self->mutex_);
    self->sending_released_soon_ = false;
    (void)self->send_released_locked();
  });
}

bool ObjectClient::send_now_locked(const wire::ObjectMessage& message) {
  if (!connected_ || options_.environment->process.is_forked()) return false;
  const Status sent = process::send_packet(requests_.get(), wire::encode(message), {},
                                           Deadline::after(kAnswerTime));
  if (!sent.ok()) disconnected_locked();
  return sent.ok();
}

Result<ObjectClient::Answered> ObjectClient::ask(std::unique_lock<std::mutex>& lock,
                                                 std::uint64_t request,
                                                 const wire::ObjectMessage& message,
                                                 Deadline deadline, ObjectId object) {
  Waiting& waiting = waiting_[request];
  const auto unavailable = [&] {
    waiting_.erase(request);
    return Status(Code::kUnavailable, "the object store of this node has ended");
  };
  if (!send_locked(message)) return unavailable();
  // The first answer comes at once; the lock keeps others from taking it.
  auto packet = process::receive_packet(requests_.get(), Deadline::after(kAnswerTime));
  if (!packet.ok()) {
    disconnected_locked();
    return unavailable();
  }
  auto decoded = wire::decode_object(packet->bytes);
  auto* answer = decoded.ok() ? get_if<wire::ObjectAnswer>(&*decoded) : nullptr;
  if (answer == nullptr || answer->request != request) {
    disconnected_locked();
    return unavailable();
  }
  if (!answer->pending) {
    Answered answered{std::move(*answer), {}};
    if (!packet->descriptors.empty()) answered.descriptor = std::move(packet->descriptors.front());
    waiting_.erase(request);
    return answered;
  }
  if (options_.environment->loop->in_loop_thread()) {
    (void)send_locked(
        wire::ObjectMessage(wire::ForgetObjectRequest{.request = request, .object_id = object}));
    waiting_.erase(request);
    return Status(Code::kFailedPrecondition,
                  "an object that is not on this node yet is waited for on a thread of Troupe's: "
                  "put(), get() and wait() are for threads of your own, and for methods");
  }
  const bool done =
      changed_.wait_until(lock, deadline.time(), [&] { return waiting.done || closed_; });
  if (!done || !waiting.done) {
    (void)send_locked(
        wire::ObjectMessage(wire::ForgetObjectRequest{.request = request, .object_id = object}));
    waiting_.erase(request);
    if (closed_) return closed_error();
    return Status(Code::kDeadlineExceeded, "the object store has not answered in time");
  }
  Answered answered{std::move(waiting.answer), std::move(waiting.descriptor)};
  waiting_.erase(request);
  return answered;
}

// Loop thread.
void ObjectClient::on_notices(std::uint64_t connection) {
  const std::lock_guard lock(mutex_);
  while (connected_ && connection == connection_) {
    auto packet = process::receive_packet(notices_.get());
    if (!packet.ok()) return disconnected_locked();
    if (!*packet) return;
    const auto message = wire::decode_object((*packet)->bytes);
    if (message.ok()) on_notice_locked(*message, (*packet)->descriptors);
  }
}

void ObjectClient::on_notice_locked(const wire::ObjectMessage& message,
                                    std::vector<UniqueFd>& descriptors) {
  if (const auto* answer = get_if<wire::ObjectAnswer>(&message)) {
    const auto waiting = waiting_.find(answer->request);
    if (waiting == waiting_.end()) {  // given up meanwhile
      const std::uint64_t segment = answer->place.segment;
      if ((answer->request & kForMemory) != 0 && segment != 0) give_back_locked(segment);
      return;
    }
    waiting->second.done = true;
    waiting->second.answer = *answer;
    if (!descriptors.empty()) waiting->second.descriptor = std::move(descriptors.front());
    changed_.notify_all();
  } else if (const auto* revoke = get_if<wire::RevokeSegments>(&message)) {
    revoke_locked(*revoke);
  } else if (const auto* freed = get_if<wire::ObjectsFreed>(&message)) {
    for (const wire::ObjectPlace& place : freed->places) {
      const auto own = own_.find(place.segment);
      if (own == own_.end()) continue;
      const auto used = own->second.used.find(place.offset);
      if (used == own->second.used.end()) continue;
      own->second.free.give_back(place.offset, used->second);
      own->second.used.erase(used);
    }
  }
}

void ObjectClient::revoke_locked(const wire::RevokeSegments& message) {
  wire::SegmentsRevoked reply;
  for (const std::uint64_t key : message.segments) {
    const auto mapping = segments_.find(key);
    const auto own = own_.find(key);
    // One is this table's, one that of what it writes.
    const long tables = own == own_.end() ? 1 : 2;
    const bool viewed = mapping != segments_.end() && mapping->second.use_count() > tables;
    const bool written = own != own_.end() && own->second.rooms > 0;
    if (viewed || written) {
      reply.in_use.push_back(key);
      continue;
    }
    if (own != own_.end()) own_.erase(own);
    if (mapping != segments_.end()) {
      if (mapping->second->stamp.has_child()) reply.inherited.push_back(key);
      segments_.erase(mapping);
    }
    for (Get* const get : gets_) get->unmapped.insert(key);
    reply.unmapped.push_back(key);
  }
  (void)send_locked(wire::ObjectMessage(std::move(reply)));
}

// --- putting -------------------------------------------------------------------------------------

class ObjectClient::Room final : public ObjectRoom {
 public:
  Room(std::shared_ptr<ObjectClient> client, std::shared_ptr<Mapping> mapping,
       std::uint64_t connection, wire::ObjectPlace place, std::uint64_t bytes)
      : client_(std::move(client)),
        mapping_(std::move(mapping)),
        connection_(connection),
        place_(place),
        bytes_(bytes) {}
  ~Room() override {
    const std::lock_guard lock(client_->mutex_);
    Own* const own = this->own();
    if (own == nullptr) return;
    --own->rooms;
    if (sealed_) return;
    own->free.give_back(place_.offset, own->used[place_.offset]);
    own->used.erase(place_.offset);
  }

  std::span<std::byte> bytes() override { return {mapping_->data + place_.offset, bytes_}; }

  HeldObjectPtr seal(std::uint64_t type_hash) override {
    const std::lock_guard lock(client_->mutex_);
    const ObjectId id{client_->object_prefix_, client_->next_object_++};
    auto object = std::make_shared<HeldObject>(
        client_, wire::ObjectRecord{.object_id = id,
                                    .home = client_->store_.node_id,
                                    .home_endpoint = client_->store_.endpoint,
                                    .bytes = bytes_,
                                    .type_hash = type_hash});
    object->place = place_;
    object->connection = connection_;
    object->own = true;
    if (own() == nullptr) return object;  // the store has ended: it is lost
    sealed_ = true;
    client_->held_[id] = {object.get(), object};
    (void)client_->send_locked(wire::ObjectMessage(wire::PutObject{
        .object_id = id, .place = place_, .bytes = bytes_, .type_hash = type_hash}));
    return object;
  }

 private:
  Own* own() {
    const auto own = client_->own_.find(place_.segment);
    if (connection_ != client_->connection_ || own == client_->own_.end()) return nullptr;
    return &own->second;
  }

  const std::shared_ptr<ObjectClient> client_;
  const std::shared_ptr<Mapping> mapping_;
  const std::uint64_t connection_;
  const wire::ObjectPlace place_;
  const std::uint64_t bytes_;
  bool sealed_ = false;
};

// Null: none of the segments that are here has room.
Result<std::unique_ptr<ObjectRoom>> ObjectClient::take_room_locked(std::uint64_t bytes) {
  const std::uint64_t slab = std::clamp(
      store_.memory_max_bytes / kSlabsOfStore / kPageBytes * kPageBytes, kPageBytes, kSlabBytes);
  const bool large = bytes > slab / kSlabPart;
  // The newest first: its memory is warm.
  for (auto it = own_.rbegin(); it != own_.rend(); ++it) {
    Own& own = it->second;
    if (own.large != large) continue;
    if (large && (!own.used.empty() ||
                  static_cast<double>(bytes) < kFilled * static_cast<double>(own.mapping->bytes))) {
      continue;
    }
    const auto offset = own.free.take(std::max<std::uint64_t>(bytes, 1));
    if (!offset) continue;
    own.used[*offset] = std::max<std::uint64_t>(bytes, 1);
    ++own.rooms;
    return std::unique_ptr<ObjectRoom>(
        std::make_unique<Room>(shared_from_this(), own.mapping, connection_,
                               wire::ObjectPlace{.segment = it->first, .offset = *offset}, bytes));
  }
  return std::unique_ptr<ObjectRoom>();
}

Result<std::unique_ptr<ObjectRoom>> ObjectClient::make_room(std::size_t bytes, Deadline deadline) {
  TROUPE_RETURN_IF_ERROR(connect(deadline));
  std::unique_lock lock(mutex_);
  while (true) {
    if (closed_) return closed_error();
    auto room = TROUPE_TRY(take_room_locked(bytes));
    if (room) return room;
    const std::uint64_t slab = std::clamp(
        store_.memory_max_bytes / kSlabsOfStore / kPageBytes * kPageBytes, kPageBytes, kSlabBytes);
    const bool large = bytes > slab / kSlabPart;
    const std::uint64_t request = next_request_++ | kForMemory;
    auto answered = TROUPE_TRY(
        ask(lock, request,
            wire::ObjectMessage(wire::NewSegment{
                .request = request, .bytes = large ? rounded_up(bytes, kPageBytes) : slab}),
            deadline));
    TROUPE_RETURN_IF_ERROR(answered.answer.status);
    if (!answered.descriptor.valid()) {
      return Status(Code::kProtocol, "the object store gave no memory");
    }
    const std::uint64_t size = answered.answer.segment_bytes;
    void* const data =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, answered.descriptor.get(), 0);
    if (data == MAP_FAILED) {
      give_back_locked(answered.answer.place.segment);
      return Status(Code::kOutOfMemory, "shared memory for an object cannot be mapped");
    }
    auto mapping = std::make_shared<Mapping>();
    mapping->data = static_cast<std::byte*>(data);
    mapping->bytes = size;
    // Whoever maps it from now on can only read.
    (void)::fcntl(answered.descriptor.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
    const std::uint64_t key = answered.answer.place.segment;
    segments_[key] = mapping;
    Own own{.mapping = std::move(mapping),
            .free = memory::RegionAllocator(size, kObjectAlignment),
            .used = {},
            .large = large};
    own_.emplace(key, std::move(own));
  }
}

// Memory into which nothing was put is its process's to the store, as long as that lives: it goes
// with an object that is put there and let go of.
void ObjectClient::give_back_locked(std::uint64_t segment) {
  const ObjectId id{object_prefix_, next_object_++};
  (void)send_locked(wire::ObjectMessage(wire::PutObject{
      .object_id = id, .place = {.segment = segment, .offset = 0}, .bytes = 0, .type_hash = 0}));
  (void)send_locked(wire::ObjectMessage(wire::SegmentsRevoked{.unmapped = {segment}}));
  (void)send_locked(wire::ObjectMessage(wire::ReleaseObjects{.objects = {id}, .unshared = false}));
}

// --- holding -------------------------------------------------------------------------------------

void ObjectClient::let_go(HeldObject& object) {
  if (options_.environment->process.is_forked()) return;  // they are the parent's
  const std::lock_guard lock(mutex_);
  const auto held = held_.find(object.record.object_id);
  // Where the reference has arrived again meanwhile, that one goes on.
  if (held == held_.end() || held->second.first != &object) return;
  held_.erase(held);
  if (object.connection != connection_ || !connected_) return;
  std::vector<ObjectId>* ids = &released_;
  const auto own = object.own && !object.shared ? own_.find(object.place.segment) : own_.end();
  if (own != own_.end()) {
    // Nobody else has ever had it: its memory is used again at once, while it is warm. (A view of
    // it keeps this object.)
    const auto used = own->second.used.find(object.place.offset);
    if (used != own->second.used.end()) {
      own->second.free.give_back(object.place.offset, used->second);
      own->second.used.erase(used);
      ids = &unshared_;
    }
  }
  ids->push_back(object.record.object_id);
  if (ids->size() >= kReleasedInMessageMax) {
    (void)send_released_locked();
  } else {
    send_released_soon_locked();
  }
}

// (Clusters without a token cannot be told apart here: what is of another one is lost there.)
Status ObjectClient::check_own(std::span<const std::shared_ptr<const void>> kept) const {
  for (const auto& one : kept) {
    const auto& object = *static_cast<const HeldObject*>(one.get());
    const auto client = object.client();
    if (!client || client.get() == this ||
        client->options_.environment->token == options_.environment->token) {
      continue;
    }
    return error(Code::kInvalidArgument,
                 "a reference to object {} of another cluster: read it, and put its value into "
                 "this one",
                 object.record.object_id.brief());
  }
  return {};
}

void ObjectClient::share(HeldObject& object) {
  const std::lock_guard lock(mutex_);
  object.shared = true;
}

HeldObjectPtr ObjectClient::arrived(const wire::ObjectRecord& record, ObjectIntake& intake) {
  const std::lock_guard lock(mutex_);
  auto& [last, weak] = held_[record.object_id];
  if (auto object = weak.lock()) {
    // (It may be one whose home has not been told yet, by another thread: then both tell it.)
    intake.objects.push_back(object);
    return object;
  }
  auto object = std::make_shared<HeldObject>(weak_from_this(), record);
  if (last != nullptr) {  // it is going at this moment, and does not say so any more
    object->place = last->place;
    object->own = last->own;
    object->connection = last->connection;
  }
  object->shared = true;
  last = object.get();
  weak = object;
  intake.objects.push_back(object);
  return object;
}

Status ObjectClient::hold_all(const ObjectIntake& intake, Deadline deadline) {
  if (intake.objects.empty()) return {};
  TROUPE_RETURN_IF_ERROR(connect(deadline));
  std::unique_lock lock(mutex_);
  for (std::size_t begin = 0; begin < intake.objects.size(); begin += kRecordsInMessageMax) {
    const std::size_t end = std::min(begin + kRecordsInMessageMax, intake.objects.size());
    wire::HoldObjects message;
    bool foreign = false;
    for (std::size_t i = begin; i < end; ++i) {
      HeldObject& object = *intake.objects[i];
      if (std::exchange(object.connection, connection_) != connection_) {
        // Segments of the store before this one had the same numbers, and other bytes.
        object.place = {};
        object.own = false;
      }
      foreign |= object.record.home != store_.node_id;
      message.objects.push_back(object.record);
    }
    if (!foreign) {  // the store reads this before it frees anything
      if (!send_locked(wire::ObjectMessage(std::move(message)))) {
        return Status(Code::kUnavailable, "the object store of this node has ended");
      }
      continue;
    }
    const std::uint64_t request = message.request = next_request_++;
    const auto answered =
        TROUPE_TRY(ask(lock, request, wire::ObjectMessage(std::move(message)), deadline));
    TROUPE_RETURN_IF_ERROR(answered.answer.status);
  }
  return {};
}

void ObjectClient::hold_all_later(ObjectIntake intake, std::function<void()> done) {
  bool at_once = false;
  {
    const std::lock_guard lock(mutex_);
    at_once = connected_ && std::ranges::all_of(intake.objects, [&](const auto& object) {
                return object->record.home == store_.node_id;
              });
  }
  if (at_once) {
    (void)hold_all(intake, Deadline::after(kAnswerTime));
    return done();
  }
  run_later([this, intake = std::move(intake), done = std::move(done)] {
    (void)hold_all(intake, Deadline::after(kObjectTimeout));
    done();
  });
}

void ObjectClient::run_later(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  later_work_.push_back(std::move(work));
  changed_.notify_all();
  if (later_.joinable()) return;
  later_ = std::thread([this] {
    while (true) {
      std::vector<std::function<void()>> works;  // go without the lock: they hold objects
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return closed_ || !later_work_.empty(); });
        works.swap(later_work_);
      }
      for (auto& work : works) {
        {
          const std::lock_guard lock(mutex_);
          if (closed_) return;
        }
        work();
        work = nullptr;
      }
      if (works.empty()) return;  // closed
    }
  });
}

// --- reading -------------------------------------------------------------------------------------

std::optional<ObjectBytes> ObjectClient::mapped_locked(const HeldObject& object) const {
  if (object.place.segment == 0 || object.connection != connection_) return std::nullopt;
  const auto mapping = segments_.find(object.place.segment);
  if (mapping == segments_.end()) return std::nullopt;
  const Mapping& memory = *mapping->second;
  if (object.record.bytes > memory.bytes ||
      object.place.offset > memory.bytes - object.record.bytes) {
    return std::nullopt;
  }
  return ObjectBytes{mapping->second, {memory.data + object.place.offset, object.record.bytes}};
}

Status ObjectClient::map_locked(const wire::ObjectAnswer& answer, UniqueFd descriptor) {
  if (segments_.contains(answer.place.segment)) return {};
  if (!descriptor.valid()) return Status(Code::kProtocol, "the object store gave no memory");
  void* const data =
      ::mmap(nullptr, answer.segment_bytes, PROT_READ, MAP_SHARED, descriptor.get(), 0);
  if (data == MAP_FAILED) {
    return Status(Code::kOutOfMemory, "shared memory of an object cannot be mapped");
  }
  auto mapping = std::make_shared<Mapping>();
  mapping->data = static_cast<std::byte*>(data);
  mapping->bytes = answer.segment_bytes;
  segments_[answer.place.segment] = std::move(mapping);
  return {};
}

std::uint32_t ObjectClient::unknown_behind_locked(const HeldObject& object) const {
  const auto next = held_.upper_bound(object.record.object_id);
  const bool unknown = next != held_.end() && next->first.high == object.record.object_id.high &&
                       next->second.first->place.segment == 0;
  return unknown ? wire::kOthersToldMax : 0;
}

void ObjectClient::know_places_locked(const wire::ObjectAnswer& answer, HeldObject& object) {
  object.place = answer.place;
  const std::size_t count = std::min(answer.others.size(), answer.other_offsets.size());
  for (std::size_t i = 0; i < count; ++i) {
    const auto held = held_.find(answer.others[i]);
    if (held == held_.end()) continue;  // let go of meanwhile
    HeldObject& other = *held->second.first;
    const std::uint64_t offset = answer.other_offsets[i];
    const bool fits = other.record.bytes <= answer.segment_bytes &&
                      offset <= answer.segment_bytes - other.record.bytes;
    if (fits && other.place.segment == 0 && other.connection == connection_)
      other.place = {.segment = answer.place.segment, .offset = offset};
  }
}

Result<ObjectClient::Answered> ObjectClient::locate(std::unique_lock<std::mutex>& lock,
                                                    const HeldObject& object, Deadline deadline) {
  while (true) {
    Get get;
    gets_.insert(&get);
    const std::uint64_t request = next_request_++;
    auto answered =
        ask(lock, request,
            wire::ObjectMessage(wire::GetObject{.request = request,
                                                .object_id = object.record.object_id,
                                                .others_max = unknown_behind_locked(object)}),
            deadline, object.record.object_id);
    gets_.erase(&get);
    if (!answered.ok() || !get.unmapped.contains(answered->answer.place.segment)) return answered;
  }
}

Result<ObjectBytes> ObjectClient::read_locked(std::unique_lock<std::mutex>& lock,
                                              HeldObject& object, Deadline deadline) {
  if (closed_) return closed_error();
  if (auto mapped = mapped_locked(object)) return std::move(*mapped);
  const auto lost = [&] {
    return error(Code::kObjectLost,
                 "object {}: the object store of this node that knew of it has ended",
                 object.record.object_id.brief());
  };
  if (!connected_ || object.connection != connection_) return lost();
  auto answered = locate(lock, object, deadline);
  if (!answered.ok()) {
    if (!connected_ && !closed_) return lost();
    return answered.status().with("object", object.record.object_id.brief());
  }
  if (!answered->answer.status.ok()) return answered->answer.status;
  if (answered->answer.bytes != object.record.bytes) {
    return error(Code::kProtocol, "object {} has {} bytes, and its reference says {}",
                 object.record.object_id.brief(), answered->answer.bytes, object.record.bytes);
  }
  TROUPE_RETURN_IF_ERROR(map_locked(answered->answer, std::move(answered->descriptor)));
  know_places_locked(answered->answer, object);
  if (auto mapped = mapped_locked(object)) return std::move(*mapped);
  object.place = {};
  return error(Code::kProtocol, "object {} lies outside of its segment",
               object.record.object_id.brief());
}

// Of those that have come in a result the homes are told later (hold_all_later()): who asks for one
// before that tells its home first.
Status ObjectClient::hold_new(std::unique_lock<std::mutex>& lock,
                              std::span<const HeldObject* const> objects, Deadline deadline) {
  ObjectIntake intake;
  for (const HeldObject* const object : objects) {
    if (object->connection != 0) continue;
    if (auto held = held_[object->record.object_id].second.lock()) {
      intake.objects.push_back(std::move(held));
    }
  }
  if (intake.objects.empty()) return {};
  lock.unlock();
  const Status held = hold_all(intake, deadline);
  lock.lock();
  return held;
}

Result<ObjectBytes> ObjectClient::read(HeldObject& object, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const HeldObject* const one = &object;
  TROUPE_RETURN_IF_ERROR(hold_new(lock, std::span(&one, 1), deadline));
  return read_locked(lock, object, deadline);
}

Result<wire::StoreTotals> ObjectClient::totals(Deadline deadline) {
  TROUPE_RETURN_IF_ERROR(connect(deadline));
  const std::lock_guard lock(mutex_);
  if (!send_locked(wire::ObjectMessage(wire::ReadStoreTotals{}))) {
    return Status(Code::kUnavailable, "the object store of this node has ended");
  }
  const auto packet =
      TROUPE_TRY(process::receive_packet(requests_.get(), Deadline::after(kAnswerTime)));
  const auto message = TROUPE_TRY(wire::decode_object(packet.bytes));
  const auto* totals = get_if<wire::StoreTotals>(&message);
  if (totals == nullptr) return Status(Code::kProtocol, "not what the object store was asked");
  return *totals;
}

NodeId ObjectClient::node_id() const {
  const std::lock_guard lock(mutex_);
  return store_.node_id;
}

Result<std::vector<std::size_t>> ObjectClient::wait(std::span<const HeldObjectPtr> objects,
                                                    std::size_t count, Deadline deadline) {
  std::unique_lock lock(mutex_);
  std::vector<const HeldObject*> all;
  for (const HeldObjectPtr& object : objects) all.push_back(object.get());
  TROUPE_RETURN_IF_ERROR(hold_new(lock, all, deadline));
  std::vector<std::size_t> ready;
  std::map<std::uint64_t, std::size_t> asked;  // by request
  const auto ask_for = [&](std::size_t i) {
    const std::uint64_t request = next_request_++;
    asked[request] = i;
    Waiting& waiting = waiting_[request];
    const bool sent = send_locked(wire::ObjectMessage(
        wire::GetObject{.request = request, .object_id = objects[i]->record.object_id}));
    auto packet = sent ? process::receive_packet(requests_.get(), Deadline::after(kAnswerTime))
                       : Result<process::Packet>(closed_error());
    auto decoded = packet.ok() ? wire::decode_object(packet->bytes)
                               : Result<wire::ObjectMessage>(packet.status());
    auto* answer = decoded.ok() ? get_if<wire::ObjectAnswer>(&*decoded) : nullptr;
    if (answer == nullptr || answer->request != request) return disconnected_locked();
    if (answer->pending) return;
    waiting.done = true;
    waiting.answer = std::move(*answer);
    if (!packet->descriptors.empty()) waiting.descriptor = std::move(packet->descriptors.front());
  };
  for (std::size_t i = 0; i < objects.size() && ready.size() < count; ++i) {
    if (mapped_locked(*objects[i])) ready.push_back(i);
  }
  Get get;
  gets_.insert(&get);
  std::set<std::size_t> known(ready.begin(), ready.end());
  for (std::size_t i = 0; i < objects.size() && ready.size() < count && connected_; ++i) {
    if (!known.contains(i)) ask_for(i);
  }
  const auto collect = [&] {
    for (auto it = asked.begin(); it != asked.end();) {
      const auto waiting = waiting_.find(it->first);
      if (waiting == waiting_.end() || !waiting->second.done) {
        ++it;
        continue;
      }
      HeldObject& object = *objects[it->second];
      if (waiting->second.answer.status.ok() &&
          !get.unmapped.contains(waiting->second.answer.place.segment) &&
          map_locked(waiting->second.answer, std::move(waiting->second.descriptor)).ok()) {
        object.place = waiting->second.answer.place;
      }
      ready.push_back(it->second);  // one that is lost is ready to say so
      waiting_.erase(waiting);
      it = asked.erase(it);
    }
    return ready.size() >= count || closed_ || asked.empty();
  };
  (void)changed_.wait_until(lock, deadline.time(), collect);
  gets_.erase(&get);
  for (const auto& [request, i] : asked) {
    (void)send_locked(wire::ObjectMessage(
        wire::ForgetObjectRequest{.request = request, .object_id = objects[i]->record.object_id}));
    waiting_.erase(request);
  }
  if (closed_) return closed_error();
  std::ranges::sort(ready);
  return ready;
}

}  // namespace troupe::detail
