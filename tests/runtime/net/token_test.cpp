#include "runtime/net/token.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <future>
#include <sstream>

#include "tests/support/test_data.h"

namespace troupe::net {
namespace {

void write(const std::string& path, std::string_view text, unsigned mode) {
  PosixFileSystem files;
  auto file = files.create(path, 0600).value();
  REQUIRE(file->append(text).ok());
  REQUIRE(file->close().ok());
  REQUIRE(::chmod(path.c_str(), mode) == 0);
}

TEST_CASE("a token is made once, for its owner alone") {
  const tests::TemporaryDirectory directory;
  const std::string path = directory.file("home/.troupe/token");
  PosixFileSystem files;
  SystemRandom random;
  const Token token = load_or_create_token(files, random, path).value();
  CHECK(token.size() == 32);
  CHECK(load_or_create_token(files, random, path).value() == token);
  CHECK(read_token_file(files, path).value() == token);
  CHECK(files.permissions(path).value() == 0600);
  CHECK(files.permissions(directory.file("home/.troupe")).value() == 0700);
  CHECK(files.read(path, 1000).value() == token_text(token).value());
  CHECK(make_token(random) != token);
}

TEST_CASE("those who make a token at the same time have the same one") {
  const tests::TemporaryDirectory directory;
  for (int round = 0; round < 20; ++round) {
    const std::string path = directory.file(std::to_string(round) + "/token");
    std::vector<std::future<Token>> made;
    for (int i = 0; i < 4; ++i) {
      made.push_back(std::async(std::launch::async, [&path] {
        PosixFileSystem files;
        SystemRandom random;
        return load_or_create_token(files, random, path).value();
      }));
    }
    const Token first = made[0].get();
    for (int i = 1; i < 4; ++i) CHECK(made[i].get() == first);
  }
}

TEST_CASE("a file that others may read is refused with the command that mends it") {
  const tests::TemporaryDirectory directory;
  const std::string path = directory.file("token");
  PosixFileSystem files;
  SystemRandom random;
  for (const unsigned mode : {0644u, 0640u, 0604u, 0620u}) {
    write(path, std::string(64, 'a') + "\n", mode);
    const Status status = load_or_create_token(files, random, path).status();
    CHECK(status.code() == Code::kPermissionDenied);
    CHECK(status.message().find("chmod 600 " + path) != std::string::npos);
  }
  CHECK(read_token_file(files, directory.file("missing")).status().code() == Code::kNotFound);
}

TEST_CASE("what is no token is refused without being shown") {
  for (const std::string text :
       {"", "\n", "abc", "secretsecretsecretsecretsecretsecretsecret!!", "0123456789abcdef",
        "0123456789abcdef0123456789abcdef0", "01 3456789abcdef0123456789abcdef01"}) {
    const Status status = parse_token(text, "the file").status();
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(status.message().find("the file") == 0);
    CHECK(status.message().find("secret") == std::string::npos);
  }
  CHECK_FALSE(parse_token(std::string(1000, 'a'), "x").ok());
  CHECK(parse_token(" \n" + std::string(32, 'A') + "\r\n", "x").value() ==
        Token(16, std::byte{0xaa}));
}

TEST_CASE("the file names the authority that its token makes, and is refused where it does not") {
  SystemRandom random;
  const Token token = make_token(random);
  const std::string text = token_text(token).value();
  const std::string authority = token.authority_fingerprint().value();
  CHECK(authority.size() == std::string("sha256:").size() + 64);
  CHECK(text.find("\nauthority " + authority + "\n") == 64);
  CHECK(parse_token(text, "x").value() == token);
  CHECK(parse_token(text.substr(0, 65), "x").value() == token);  // older files
  CHECK(Token(token.secret()).authority_fingerprint().value() == authority);
  CHECK(make_token(random).authority_fingerprint().value() != authority);

  std::string mixed = token_text(make_token(random)).value().substr(0, 64) + text.substr(64);
  const Status refused = parse_token(mixed, "the file").status();
  CHECK(refused.code() == Code::kInvalidArgument);
  CHECK(refused.message().find("the file is damaged") == 0);
  CHECK(refused.message().find(mixed.substr(0, 64)) == std::string::npos);
  mixed = text.substr(0, text.size() - 2);
  CHECK_FALSE(parse_token(mixed, "x").ok());
}

TEST_CASE("a token of known bytes makes a known authority") {
  // The seed is HKDF-SHA256(salt "troupe", token, info "troupe certificate authority 1"), computed
  // apart: the authority must never change under clusters that run.
  CHECK(Token(32, std::byte{0x5a}).authority_fingerprint().value() ==
        "sha256:c0c2a1134e21bb9085da23092521905708e693e50cdded0f505c1e9ddea6af48");
}

TEST_CASE("a token from standard input is its first line") {
  std::istringstream in(std::string(64, '5') + "\nmore\n");
  CHECK(read_token(in).value() == Token(32, std::byte{0x55}));
  std::istringstream empty("");
  CHECK(read_token(empty).status().message().find("standard input") == 0);
  std::istringstream endless(std::string(100'000, 'a'));
  CHECK_FALSE(read_token(endless).ok());
}

}  // namespace
}  // namespace troupe::net
