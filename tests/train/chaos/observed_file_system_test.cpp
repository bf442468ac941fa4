#include "train/chaos/observed_file_system.h"

#include <doctest/doctest.h>

#include <memory>

#include "tests/support/faulty_file_system.h"
#include "tests/train/chaos/recorded_effects.h"

namespace troupe::train {
namespace {

using tests::FaultyFileSystem;
using tests::planned;
using tests::RecordedEffects;

// The points of files, as words.
class Seen final : public PointObserver {
 public:
  void reached(const Point& point) override {
    if (point.kind == PointKind::kFile) names += std::string(point.operation) + " ";
    if (point.kind == PointKind::kFileEnd) ++ends;
  }
  std::string names;
  int ends = 0;
};

struct Disk {
  ManualClock clock;
  RecordedEffects effects{clock};
  FaultInjector injector{effects, clock};
  std::unique_ptr<ProgressRecord> record = std::make_unique<ProgressRecord>();
  Seen seen;
  ProgressRecorder recorder{*record, &seen};
  FaultyFileSystem under;
  ObservedFileSystem files{under};
  explicit Disk(const char* faults = "") {
    injector.begin_generation(0, 1, planned(faults));
    files.observe(&recorder, &injector);
  }
  std::string content(const std::string& path) { return under.read(path, 1000).value(); }
};

Status write_twice(FileSystem& files) {
  auto file = TROUPE_TRY(files.create("/file"));
  TROUPE_RETURN_IF_ERROR(file->append("one,"));
  TROUPE_RETURN_IF_ERROR(file->append("two."));
  TROUPE_RETURN_IF_ERROR(file->sync());
  return file->close();
}

TEST_CASE("every operation is a point with a begin and an end, and changes nothing") {
  Disk disk;
  REQUIRE(write_twice(disk.files).ok());
  CHECK(disk.content("/file") == "one,two.");
  REQUIRE(disk.files.rename("/file", "/other").ok());
  REQUIRE(disk.files.sync_directory("/").ok());
  {
    auto places = disk.files.open_positional("/places", 4).value();
    REQUIRE(places->write_at(1, std::as_bytes(std::span("ab", 2))).ok());
    REQUIRE(places->sync().ok());
    REQUIRE(places->close().ok());
  }
  CHECK(disk.files.read("/places", 10).value() == std::string("\0ab\0", 4));
  REQUIRE(disk.files.remove("/other").ok());
  CHECK(disk.seen.names ==
        "create append append sync close rename sync_directory open_positional write_at sync close "
        "read remove ");
  CHECK(disk.seen.ends == 13);
}

TEST_CASE("a failed write, the second") {
  Disk disk("fail_write@hit=2");
  const Status status = write_twice(disk.files);
  CHECK(status.code() == Code::kDataLoss);
  CHECK(status.message() == "cannot append /file: Input/output error (injected)");
  CHECK(disk.content("/file") == "one,");
  CHECK(write_twice(disk.files).ok());
}

TEST_CASE("a fault of a file that is named by a part of its path") {
  Disk disk("fail_write@file=checkpoint-4");
  CHECK(write_twice(disk.files).ok());
  auto file = disk.files.create("/checkpoint-4.tmp").value();
  CHECK(file->append("x").code() == Code::kDataLoss);
}

TEST_CASE("a failed sync, of a file and of a directory") {
  Disk disk("fail_fsync");
  CHECK(write_twice(disk.files).message() == "cannot sync /file: Input/output error (injected)");
  CHECK(write_twice(disk.files).ok());
  Disk directory("fail_fsync@operation=sync_directory");
  CHECK(write_twice(directory.files).ok());
  CHECK_FALSE(directory.files.sync_directory("/").ok());
}

TEST_CASE("a torn write leaves its half; the process dies or the write fails") {
  Disk dies("torn_write@hit=2");
  CHECK_FALSE(write_twice(dies.files).ok());
  CHECK(dies.content("/file") == "one,tw");
  CHECK(dies.effects.take() == "told 0, kill");
  Disk fails("torn_write@hit=1,then=fail");
  CHECK(write_twice(fails.files).code() == Code::kDataLoss);
  CHECK(fails.content("/file") == "on");
  CHECK(fails.effects.take() == "told 0");
}

TEST_CASE("a full disk stays full for its time; what needs no room goes on") {
  Disk disk("disk_full@hit=2,for_ms=500");
  const Status status = write_twice(disk.files);
  CHECK(status.code() == Code::kResourceExhausted);
  CHECK(status.message() == "cannot append /file: No space left on device (injected)");
  CHECK(disk.files.create("/new").status().code() == Code::kResourceExhausted);
  CHECK(disk.files.rename("/file", "/other").ok());
  CHECK(disk.files.remove("/other").ok());
  disk.clock.advance(std::chrono::milliseconds(501));
  CHECK(write_twice(disk.files).ok());
}

TEST_CASE("a kill before the Nth operation of a name leaves it undone") {
  Disk disk("kill@point=file,operation=rename");
  disk.recorder.observe(&disk.injector);
  REQUIRE(write_twice(disk.files).ok());
  CHECK(disk.effects.take().empty());
  REQUIRE(disk.files.rename("/file", "/other").ok());
  CHECK(disk.effects.take() == "told 0, kill");
}

TEST_CASE("without observers it passes everything on") {
  FaultyFileSystem under;
  ObservedFileSystem files(under);
  CHECK(write_twice(files).ok());
  CHECK(files.exists("/file"));
  CHECK(files.size("/file").value() == 8);
}

}  // namespace
}  // namespace troupe::train
