// The head's decisions on a disk that fails.

#include "scheduler/head/journal.h"

#include <doctest/doctest.h>

#include "runtime/base/limits.h"
#include "runtime/base/random.h"
#include "runtime/base/record.h"
#include "tests/support/faulty_file_system.h"

using namespace troupe;
using namespace troupe::scheduler;
using tests::FaultyFileSystem;

namespace {

const std::string kJournalPath = "/state/journal";

// Decisions that can be told apart.
std::vector<Delta> decisions(std::uint64_t first, std::uint64_t count) {
  std::vector<Delta> deltas;
  for (std::uint64_t i = first; i < first + count; ++i) {
    EventLogged logged;
    logged.event.sequence = i;
    logged.event.kind = "actor_alive";
    logged.event.actor_id = ActorId{i, ~i};
    logged.event.text = "decision " + std::to_string(i);
    deltas.push_back(logged);
  }
  return deltas;
}

// Bytes that take as many in the journal.
wire::Bytes noise(std::size_t size) {
  wire::Bytes bytes(size);
  SeededRandom(1).fill(bytes);
  return bytes;
}

struct Disk {
  FaultyFileSystem files;
  Disk() {
    REQUIRE(files.create_directories("/state").ok());
    REQUIRE(files.sync_directory("/").ok());
  }
  FileJournal journal() { return FileJournal(files, kJournalPath); }
  // What a head that starts now would read.
  Result<std::vector<Delta>> replay() {
    std::vector<Delta> deltas;
    auto kept = journal();
    TROUPE_RETURN_IF_ERROR(kept.replay([&](Delta delta) {
      deltas.push_back(std::move(delta));
      return Status();
    }));
    return deltas;
  }
  std::string content() { return files.read(kJournalPath, 1 << 24).value(); }
  // A journal of a snapshot and what was appended.
  void write(std::uint64_t snapshot, std::uint64_t appended) {
    REQUIRE(replay().ok());
    auto kept = journal();
    REQUIRE(kept.rewrite(decisions(1, snapshot)).ok());
    for (std::uint64_t i = 0; i < appended; ++i) {
      REQUIRE(kept.append(decisions(snapshot + 1 + i, 1)).ok());
    }
  }
};

}  // namespace

TEST_CASE("a journal gives back what was appended, in order") {
  Disk disk;
  CHECK(disk.replay().value().empty());
  disk.write(2, 5);
  CHECK(disk.replay().value() == decisions(1, 7));
}

TEST_CASE("a journal that was read is appended to; one with a torn end is written anew") {
  const auto take = [](const Delta&) { return Status(); };
  Disk disk;
  disk.write(2, 1);
  const std::string sound = disk.content();
  auto journal = disk.journal();
  CHECK_FALSE(journal.can_append());
  REQUIRE(journal.replay(take).ok());
  CHECK(journal.can_append());
  REQUIRE(journal.append(decisions(4, 1)).ok());
  CHECK(disk.replay().value() == decisions(1, 4));

  disk.files.set_content(kJournalPath, sound + "torn");
  auto torn = disk.journal();
  REQUIRE(torn.replay(take).ok());
  CHECK_FALSE(torn.can_append());
  CHECK(torn.append(decisions(4, 1)).code() == Code::kFailedPrecondition);
  REQUIRE(torn.rewrite(decisions(1, 3)).ok());
  REQUIRE(torn.append(decisions(4, 1)).ok());
  CHECK(disk.replay().value() == decisions(1, 4));
}

TEST_CASE("appending needs an open journal") {
  Disk disk;
  auto journal = disk.journal();
  CHECK(journal.wants_rewrite(0));
  CHECK(journal.append(decisions(1, 1)).code() == Code::kFailedPrecondition);
}

TEST_CASE("a torn end is dropped, wherever it was torn") {
  Disk disk;
  disk.write(1, 3);
  const std::string whole = disk.content();
  disk.write(1, 2);
  const std::size_t before = disk.content().size();
  for (std::size_t size = before; size < whole.size(); ++size) {
    CAPTURE(size);
    disk.files.set_content(kJournalPath, whole.substr(0, size));
    const auto deltas = disk.replay();
    REQUIRE(deltas.ok());
    CHECK(*deltas == decisions(1, 3));
  }
  // Nobody needs it.
  CHECK(disk.files.snapshot("/state").size() == 1);
}

TEST_CASE("a last record that was damaged is kept beside the journal, and told") {
  const auto take = [](const Delta&) { return Status(); };
  Disk disk;
  disk.write(1, 2);
  const std::size_t last = disk.content().size();
  auto writer = disk.journal();
  REQUIRE(writer.replay(take).ok());
  CHECK(writer.damage().empty());
  REQUIRE(writer.append(decisions(4, 1)).ok());
  const std::string whole = disk.content();
  for (std::size_t at = last; at < whole.size(); ++at) {
    CAPTURE(at);
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    disk.files.set_content(kJournalPath, damaged);
    CHECK(disk.replay().value() == decisions(1, 3));
    auto journal = disk.journal();
    REQUIRE(journal.replay(take).ok());
    const auto files = disk.files.snapshot("/state");
    REQUIRE(files.size() == 2);  // twice the same bytes are kept once
    const auto& [name, kept] = *files.rbegin();
    CHECK(kept == damaged.substr(last));
    for (const std::string& said : {kJournalPath, "byte " + std::to_string(last), name}) {
      CHECK_MESSAGE(journal.damage().find(said) != std::string::npos, journal.damage());
    }
    REQUIRE(journal.rewrite(decisions(1, 3)).ok());
    CHECK(disk.files.snapshot("/state").size() == 2);
    REQUIRE(disk.files.remove("/state/" + name).ok());
  }
}

TEST_CASE("a damaged end that cannot be kept is told, and does not stop a head's start") {
  Disk disk;
  disk.write(1, 1);
  disk.files.set_content(kJournalPath, disk.content() + std::string(100, 'x'));
  disk.files.set_space_bytes(disk.content().size());
  auto journal = disk.journal();
  REQUIRE(journal.replay([](const Delta&) { return Status(); }).ok());
  CHECK(journal.damage().find("could not be kept") != std::string::npos);
}

TEST_CASE("what was appended at once comes back whole or not at all") {
  Disk disk;
  disk.write(2, 1);
  const std::string before = disk.content();
  auto journal = disk.journal();
  REQUIRE(journal.rewrite(decisions(1, 3)).ok());
  REQUIRE(journal.append(decisions(4, 6)).ok());
  REQUIRE(journal.append({}).ok());
  REQUIRE(journal.append(decisions(10, 2)).ok());
  CHECK(disk.replay().value() == decisions(1, 11));
  const std::string whole = disk.content();
  for (std::size_t size = before.size(); size < whole.size(); ++size) {
    CAPTURE(size);
    disk.files.set_content(kJournalPath, whole.substr(0, size));
    const auto deltas = disk.replay();
    REQUIRE(deltas.ok());
    CHECK((*deltas == decisions(1, 3) || *deltas == decisions(1, 9)));
  }
}

TEST_CASE("an end of zeros, as a power cut leaves it, is torn") {
  Disk disk;
  disk.write(1, 2);
  disk.files.set_content(kJournalPath, disk.content() + std::string(4096, '\0'));
  const auto deltas = disk.replay();
  REQUIRE_MESSAGE(deltas.ok(), deltas.status().to_string());
  CHECK(*deltas == decisions(1, 3));
}

TEST_CASE("damage before the end is told, with the file and the place") {
  Disk disk;
  disk.write(1, 1);
  const std::size_t before_last = disk.content().size();
  disk.write(1, 2);
  const std::string whole = disk.content();
  // Any byte but those of the last record: length, hash or payload.
  for (std::size_t at = 8; at < before_last; ++at) {
    CAPTURE(at);
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    disk.files.set_content(kJournalPath, damaged);
    const Status status = disk.replay().status();
    CHECK(status.code() == Code::kDataLoss);
    CHECK(status.message().find(kJournalPath) != std::string::npos);
  }
}

TEST_CASE("a torn end is told from damage however large it is and whatever it holds") {
  Disk disk;
  disk.write(1, 2);
  const std::string sound = disk.content();
  // Every fourth byte begins what could be the length of a record of 65,793 bytes.
  std::string end;
  while (end.size() < (8u << 20)) end += std::string("\1\1\1\0", 4);
  disk.files.set_content(kJournalPath, sound + end);
  CHECK(disk.replay().value() == decisions(1, 3));
  // A record's bytes are none where they were not written: within another one that was cut.
  disk.files.set_content(kJournalPath, sound + end + sound.substr(8));
  CHECK(disk.replay().value() == decisions(1, 3));

  auto journal = disk.journal();
  REQUIRE(journal.rewrite(decisions(1, 3)).ok());
  REQUIRE(journal.append(decisions(4, 50'000)).ok());
  const std::string large = disk.content();
  disk.files.set_content(kJournalPath, large.substr(0, large.size() - 1));
  CHECK(disk.replay().value() == decisions(1, 3));
}

TEST_CASE("another file is no journal; half a beginning is an empty one") {
  Disk disk;
  REQUIRE(disk.files.create(kJournalPath).value()->append("stage: pt\nmodel: x\n").ok());
  CHECK(disk.replay().status().code() == Code::kDataLoss);
  for (const char* begun : {"", "T", "TRPJRNL", "TRPJRNL2"}) {
    CAPTURE(begun);
    disk.files.set_content(kJournalPath, begun);
    CHECK(disk.replay().value().empty());
  }
  // However short the other file is, it is not written over.
  for (const char* other : {"x", "TRPJRNX", "yes\n"}) {
    CAPTURE(other);
    disk.files.set_content(kJournalPath, other);
    CHECK(disk.replay().status().code() == Code::kDataLoss);
    CHECK(disk.content() == other);
  }
}

TEST_CASE("the journals of earlier versions, with records of one delta and of several, are read") {
  Disk disk;
  std::string content = "TRPJRNL2";
  const auto add = [&](const std::vector<std::byte>& payload) {
    const std::size_t at = content.size();
    content.resize(at + kRecordHeaderBytes + payload.size());
    write_record(reinterpret_cast<std::byte*>(content.data()) + at, at, {payload});
  };
  const auto three = decisions(1, 3);
  add(encode_delta(three[0]));
  std::vector<std::byte> several(1, std::byte{2});
  for (const Delta& delta : {three[1], three[2]}) {
    const auto bytes = encode_delta(delta);
    const auto length = static_cast<std::uint32_t>(bytes.size());
    const auto front = std::as_bytes(std::span(&length, 1));
    several.insert(several.end(), front.begin(), front.end());
    several.insert(several.end(), bytes.begin(), bytes.end());
  }
  add(several);
  REQUIRE(disk.files.create(kJournalPath).ok());
  disk.files.set_content(kJournalPath, content);
  CHECK(disk.replay().value() == three);
  // … and gone on with.
  auto journal = disk.journal();
  REQUIRE(journal.replay([](const Delta&) { return Status(); }).ok());
  REQUIRE(journal.append(decisions(4, 2)).ok());
  CHECK(disk.replay().value() == decisions(1, 5));
}

TEST_CASE("the journal of another version is told as that") {
  Disk disk;
  REQUIRE(disk.files.create(kJournalPath).value()->append("TRPJRNL1 and more").ok());
  const Status status = disk.replay().status();
  CHECK(status.code() == Code::kDataLoss);
  CHECK(status.message().find("another version") != std::string::npos);
}

TEST_CASE("a full disk fails an append; when there is room again a rewrite makes it good") {
  Disk disk;
  auto journal = disk.journal();
  REQUIRE(journal.rewrite(decisions(1, 2)).ok());
  CHECK_FALSE(journal.wants_rewrite(0));
  disk.files.set_space_bytes(disk.content().size() + 20);
  CHECK(journal.append(decisions(3, 1)).code() == Code::kResourceExhausted);
  CHECK(journal.wants_rewrite(0));
  // The half record is a torn end.
  CHECK(disk.replay().value() == decisions(1, 2));
  CHECK(journal.append(decisions(3, 1)).code() == Code::kFailedPrecondition);
  CHECK_FALSE(journal.rewrite(decisions(1, 3)).ok());
  CHECK(disk.replay().value() == decisions(1, 2));
  disk.files.set_space_bytes(1 << 20);
  CHECK(journal.rewrite(decisions(1, 3)).ok());
  CHECK(journal.append(decisions(4, 1)).ok());
  CHECK(disk.replay().value() == decisions(1, 4));
}

TEST_CASE("a failed sync is a failed append") {
  Disk disk;
  auto journal = disk.journal();
  REQUIRE(journal.rewrite(decisions(1, 1)).ok());
  disk.files.fail_operation(1);  // after the write
  CHECK_FALSE(journal.append(decisions(2, 1)).ok());
  CHECK(journal.wants_rewrite(0));
}

TEST_CASE("a crash anywhere in a rewrite leaves the old journal or the new one") {
  using Survives = FaultyFileSystem::Survives;
  for (const auto survives :
       {Survives::kEverything, Survives::kSyncedOnly, Survives::kNamesNotBytes}) {
    for (std::uint64_t operation = 0;; ++operation) {
      CAPTURE(operation);
      Disk disk;
      disk.write(1, 2);
      REQUIRE(disk.replay().ok());
      auto journal = disk.journal();
      disk.files.crash_at_operation(operation);
      const bool finished = journal.rewrite(decisions(10, 4)).ok();
      if (!disk.files.fault_happened()) {
        CHECK(finished);
        break;
      }
      disk.files.revive(survives);
      const auto deltas = disk.replay();
      REQUIRE_MESSAGE(deltas.ok(), deltas.status().to_string());
      CHECK((*deltas == decisions(1, 3) || *deltas == decisions(10, 4)));
    }
  }
}

TEST_CASE("what append made durable survives a power cut at any later moment") {
  using Survives = FaultyFileSystem::Survives;
  for (const auto survives : {Survives::kEverything, Survives::kSyncedOnly}) {
    for (std::uint64_t operation = 0; operation < 6; ++operation) {
      CAPTURE(operation);
      Disk disk;
      auto journal = disk.journal();
      REQUIRE(journal.rewrite(decisions(1, 1)).ok());
      disk.files.crash_at_operation(operation);
      std::uint64_t kept = 1;
      while (journal.append(decisions(kept + 1, 1)).ok()) ++kept;
      disk.files.revive(survives);
      const auto deltas = disk.replay();
      REQUIRE_MESSAGE(deltas.ok(), deltas.status().to_string());
      CHECK(deltas->size() >= kept);
      CHECK(*deltas == decisions(1, deltas->size()));
    }
  }
}

TEST_CASE("a journal that is mostly history wants to be rewritten") {
  Disk disk;
  auto journal = disk.journal();
  REQUIRE(journal.rewrite(decisions(1, 10)).ok());
  int appends = 0;
  while (!journal.wants_rewrite(0) && appends < 10'000) {
    REQUIRE(journal.append(decisions(1, 100)).ok());
    ++appends;
  }
  CHECK(disk.content().size() > (1u << 20));
  REQUIRE(journal.rewrite(decisions(1, 10)).ok());
  CHECK_FALSE(journal.wants_rewrite(0));
  CHECK(disk.content().size() < 4096);
}

TEST_CASE("a file larger than a head writes is refused by a sentence, and never written") {
  constexpr std::size_t kMost = 10'000;
  Disk disk;
  FileJournal journal(disk.files, kJournalPath, kMost);
  std::vector<Delta> large;
  wire::ActorSpec spec;
  spec.constructor_arguments = noise(kMost);
  large.assign(2, ActorCreated{spec});
  // What would be more leaves the file as it is.
  REQUIRE(journal.rewrite(decisions(1, 2)).ok());
  CHECK(journal.rewrite(large).code() == Code::kFailedPrecondition);
  CHECK(disk.replay().value() == decisions(1, 2));
  REQUIRE(journal.rewrite(decisions(1, 2)).ok());
  CHECK(journal.append(large).code() == Code::kFailedPrecondition);
  REQUIRE(journal.append(decisions(3, 1)).ok());
  CHECK(disk.replay().value() == decisions(1, 3));
  disk.files.set_content(kJournalPath, disk.content() + std::string(kMost, '\0'));
  FileJournal later(disk.files, kJournalPath, kMost);
  const Status status = later.replay([](const Delta&) { return Status(); });
  CHECK(status.code() == Code::kFailedPrecondition);
  CHECK(status.message().find(kJournalPath) != std::string::npos);
  CHECK(status.message().find("move it away") != std::string::npos);
}

TEST_CASE("history is bounded however large the snapshot is, and counted before it is written") {
  Disk disk;
  auto journal = disk.journal();
  std::vector<Delta> snapshot;
  wire::ActorSpec spec;
  spec.constructor_arguments = noise(limits::kJournalHistoryBytesMax / 2);
  snapshot.push_back(ActorCreated{spec});
  REQUIRE(journal.rewrite(snapshot).ok());
  CHECK_FALSE(journal.wants_rewrite(limits::kJournalHistoryBytesMax));
  CHECK(journal.wants_rewrite(limits::kJournalHistoryBytesMax + 1));
  REQUIRE(journal.append(decisions(1, 1)).ok());
  CHECK(journal.wants_rewrite(limits::kJournalHistoryBytesMax));
}
