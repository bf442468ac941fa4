// Packages: written, unpacked, refused. What is refused leaves nothing, inside or outside.

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/file_system.h"
#include "runtime/base/hash.h"
#include "runtime/base/random.h"
#include "scheduler/packages/package_file.h"
#include "scheduler/packages/unpack.h"
#include "tests/support/test_data.h"

namespace troupe::scheduler {
namespace {

namespace fs = std::filesystem;
using Kind = wire::PackageEntryKind;

wire::PackageEntry folder(const std::string& path) {
  return {path, Kind::kDirectory, false, 0, {}};
}
wire::PackageEntry file(const std::string& path, std::uint64_t bytes = 0) {
  return {path, Kind::kFile, false, bytes, {}};
}
wire::PackageEntry link(const std::string& path, const std::string& target) {
  return {path, Kind::kSymlink, false, 0, target};
}

struct Workshop {
  tests::TemporaryDirectory directory;
  PosixFileSystem files;
  int next = 1;

  PackageSource source(const std::string& path, const std::string& content,
                       bool executable = false) {
    const std::string from = directory.file(std::to_string(next++));
    std::ofstream(from) << content;
    return {{path, Kind::kFile, executable, content.size(), {}}, from};
  }
  std::vector<PackageSource> sources() {
    return {source("work/run.sh", "#!/bin/sh\n", true),
            {folder("work"), {}},
            {folder("work/data"), {}},
            source("work/data/words", std::string(3u << 20, 'w')),
            {link("work/data/up", "../run.sh"), {}},
            source("work/data/none", ""),
            {folder("lib"), {}},
            {link("lib/libx.so", "../work/data/words"), {}}};
  }
  Result<wire::Package> write(
      std::vector<PackageSource> all, const std::function<bool()>& go_on = [] { return true; }) {
    return write_package(files, std::move(all), directory.file("package"), go_on);
  }
  std::string bytes() { return files.read(directory.file("package"), 1u << 30).value(); }
  // What becomes of such a package file; nothing may be left of it.
  Status unpack(const std::string& content) {
    fs::create_directory(directory.file("place"));
    Status status = unpack_package(bytes_of(content), directory.file("place/made"));
    CHECK(fs::exists(directory.file("place/made")) == status.ok());
    CHECK(remove_unpacked(directory.file("place/made")).ok());
    CHECK(fs::is_empty(directory.file("place")));
    return status;
  }
};

TEST_CASE("what was packed is unpacked, closed to writers, and equal contents have one name") {
  Workshop shop;
  const auto package = shop.write(shop.sources());
  REQUIRE_MESSAGE(package.ok(), package.status().to_string());
  const std::string bytes = shop.bytes();
  CHECK(package->size_bytes == bytes.size());
  CHECK(package->sha256 == to_hex(sha256(bytes_of(bytes))));
  Workshop other;
  CHECK(other.write(other.sources()).value() == *package);
  auto more = other.sources();
  more.front().entry.executable = false;
  CHECK(other.write(std::move(more)).value() != *package);

  const std::string made = shop.directory.file("made");
  REQUIRE(unpack_package(bytes_of(bytes), made).ok());
  CHECK(fs::file_size(made + "/work/data/words") == 3u << 20);
  CHECK(fs::read_symlink(made + "/work/data/up") == "../run.sh");
  CHECK(fs::file_size(made + "/lib/libx.so") == 3u << 20);
  const auto mode = [&](const std::string& path) {
    return static_cast<unsigned>(fs::status(made + path).permissions());
  };
  CHECK(mode("/work/run.sh") == 0500);
  CHECK(mode("/work/data/none") == 0400);
  CHECK(mode("/work/data") == 0500);
  CHECK(unpack_package(bytes_of(bytes), made).code() == Code::kAlreadyExists);

  CHECK(check_unpacked(bytes_of(bytes), made).ok());
  const std::string words = made + "/work/data/words";
  fs::permissions(made + "/work/data", fs::perms::owner_all);
  SUBCASE("a bit") {
    fs::permissions(words, fs::perms::owner_all);
    std::fstream(words, std::ios::in | std::ios::out).put('x');
    fs::permissions(words, fs::perms::owner_read);
  }
  SUBCASE("a mode") { fs::permissions(words, fs::perms::owner_all); }
  SUBCASE("a link for a file") {
    fs::rename(words, made + "/work/data/moved");
    fs::create_symlink("moved", words);
  }
  SUBCASE("nothing") { fs::remove(words); }
  CHECK(check_unpacked(bytes_of(bytes), made).code() == Code::kDataLoss);
  CHECK(remove_unpacked(made).ok());
  CHECK_FALSE(fs::exists(made));
  CHECK(remove_unpacked(made).ok());
}

TEST_CASE("a file that is longer or shorter than it was when it was looked at is no package") {
  Workshop shop;
  auto sources = shop.sources();
  const std::string words = sources[3].from;
  std::function<bool()> go_on = [] { return true; };
  SUBCASE("before") { std::ofstream(words, std::ios::app) << "more"; }
  SUBCASE("meanwhile") {
    go_on = [&] { return fs::resize_file(words, 10), true; };
  }
  const auto changed = shop.write(std::move(sources), go_on);
  CHECK(changed.status().code() == Code::kAborted);
  CHECK(changed.status().message().find(words) != std::string::npos);
  CHECK(shop.write(shop.sources(), [] { return false; }).status().code() == Code::kCancelled);
}

TEST_CASE("paths and links that leave the package are refused") {
  const auto refused = [](std::vector<wire::PackageEntry> entries) {
    return check_entries(entries).code() == Code::kInvalidArgument;
  };
  CHECK_FALSE(refused({folder("a"), file("a/b"), link("a/c", "../a/b"), file("d")}));
  CHECK_FALSE(refused({folder("a"), link("a/up", "..")}));
  for (const char* path : {"", "/a", "..", "../a", "a/..", ".", "a/.", "a//b", "a/"}) {
    CAPTURE(path);
    CHECK(refused({folder("a"), file(path)}));
  }
  CHECK(refused({file(std::string("a\0b", 3))}));
  CHECK(refused({file(std::string(256, 'a'))}));
  CHECK(refused({file("a/b")}));                               // in no folder
  CHECK(refused({file("a"), file("a/b")}));                    // in a file
  CHECK(refused({link("a", "b"), file("a/b"), folder("b")}));  // through a link
  CHECK(refused({file("a"), file("a")}));                      // twice
  CHECK(refused({folder("b"), file("a")}));                    // out of order
  CHECK(refused({folder("a"), {"b", Kind::kDirectory, false, 1, {}}}));
  CHECK(refused({{"a", Kind::kFile, false, 0, "b"}}));  // a file with a target
  for (const char* target :
       {"", "/etc/passwd", "..", "../a", "b/../../..", "b/..", "./b", "b//c"}) {
    CAPTURE(target);
    CHECK(refused({link("a", target), folder("b")}));
  }
  CHECK(refused({folder("a"), link("a/b", "../../c")}));
  CHECK(refused({folder("a"), link("a/b", "../..")}));
}

TEST_CASE("a package that was cut, lengthened or made up leaves nothing behind") {
  Workshop shop;
  REQUIRE(shop.write({{folder("work"), {}},
                      shop.source("work/a", "some words"),
                      shop.source("work/b", "others", true)})
              .ok());
  const std::string whole = shop.bytes();
  REQUIRE(shop.unpack(whole).ok());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CHECK(shop.unpack(whole.substr(0, length)).code() == Code::kDataLoss);
  }
  CHECK(shop.unpack(whole + "x").code() == Code::kDataLoss);
  std::string endless = whole;
  endless[15] = '\x7f';  // the manifest's length
  CHECK(shop.unpack(endless).code() == Code::kDataLoss);

  // The manifest of somebody who means harm, with contents that come out even.
  const auto with = [&](const std::vector<wire::PackageEntry>& entries,
                        const std::string& content) {
    const wire::Bytes manifest = wire::encode(wire::PackageManifest{entries});
    std::string bytes(kPackageMagic);
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(manifest.size() >> (8 * i));
    bytes.append(reinterpret_cast<const char*>(manifest.data()), manifest.size());
    return shop.unpack(bytes + content);
  };
  CHECK(with({folder("a"), file("a/b", 2)}, "hi").ok());
  CHECK(with({file("../evil", 2)}, "hi").code() == Code::kInvalidArgument);
  CHECK(with({link("a", "/tmp"), file("a/evil", 2)}, "hi").code() == Code::kInvalidArgument);
  CHECK(with({file("a", ~std::uint64_t{0}), file("b", 3)}, "hi").code() == Code::kDataLoss);

  // Whatever the bytes are, nothing is touched but the one folder (Workshop::unpack checks that).
  SeededRandom random(11);
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = whole;
    for (std::uint64_t n = 1 + random.below(4); n > 0; --n) {
      damaged[random.below(damaged.size())] = static_cast<char>(random.below(256));
    }
    (void)shop.unpack(damaged);
  }
}

}  // namespace
}  // namespace troupe::scheduler
