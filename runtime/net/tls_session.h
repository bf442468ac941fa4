#pragma once
// TLS over one connected socket, without waiting: every call does what can be done now and says
// what it waits for. Private to this folder and its tests. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/net/tls_context.h"

struct x509_store_ctx_st;
struct bio_st;

namespace troupe::net {

enum class TlsState {
  kDone,       // what was asked for
  kWaitRead,   // again when the socket is readable
  kWaitWrite,  // again when the socket takes bytes
  kClosed,     // the peer has ended its side, and said so
  kBroken,     // failure() says why
};

struct TlsIo {
  TlsState state = TlsState::kDone;
  std::size_t count = 0;  // of bytes, where done; above zero
};

class TlsSession {
 public:
  // The socket stays the caller's and must outlive the session. `server_name` is what a listener
  // routes by; empty: none is sent.
  static Result<std::unique_ptr<TlsSession>> client(std::shared_ptr<const TlsContext> context,
                                                    int socket, const std::string& server_name);
  static Result<std::unique_ptr<TlsSession>> server(std::shared_ptr<const TlsContext> context,
                                                    int socket);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Until it is done, the peer may send limits::kHandshakeBytesMax.
  TlsState handshake();
  TlsIo read(std::span<std::byte> space);
  // encrypt() and as much of flush() as goes now.
  TlsIo write(std::span<const std::byte> data);
  // Takes `data`, or its beginning; what it becomes waits for flush(). kDone or kBroken.
  TlsIo encrypt(std::span<const std::byte> data);
  // Gives the socket what is encrypted. kDone, kWaitWrite or kBroken.
  TlsState flush();
  bool unsent() const { return sent_ < encrypted_.size(); }
  // Bytes that the socket has given already and read() has not.
  bool has_read_ahead() const;
  bool end_of_file() const { return end_of_file_; }
  // Tells the peer that nothing follows. Best effort.
  void end_writing();
  // From now on larger pieces are taken from the socket at once: for streams.
  void read_ahead();
  // A stream that found its socket empty does not ask it again before this.
  void look_again() { socket_is_empty_ = false; }
  // For tests: a new key after so many records, instead of many millions.
  void renew_key_after(std::uint64_t records) { records_per_key_ = records; }
  // What the peer said first, whether it is TLS or not.
  std::optional<std::byte> first_byte() const { return first_byte_; }
  // Why it is broken. `where` names the peer. kUnauthenticated: another cluster's certificate,
  // none, or one whose time is over or has not come, with both times; kProtocol; kUnavailable.
  Status failure(const std::string& where) const;

  // OpenSSL's callbacks.
  static int on_certificate(int ok, x509_store_ctx_st* chain);
  static OpenSslHandle<bio_method_st> make_socket_method();

 private:
  TlsSession(std::shared_ptr<const TlsContext> context, int socket);
  static Result<std::unique_ptr<TlsSession>> make(std::shared_ptr<const TlsContext> context,
                                                  int socket);
  static int socket_write(bio_st* bio, const char* data, int size);
  static int socket_read(bio_st* bio, char* space, int size);
  static long socket_control(bio_st* bio, int command, long number, void* pointer);
  // After a call that gave `result`.
  TlsState outcome(int result);

  const std::shared_ptr<const TlsContext> context_;
  const int socket_;
  OpenSslHandle<ssl_st> ssl_;
  bool established_ = false;
  std::vector<std::byte> encrypted_;  // [sent_, end) waits for the socket
  std::size_t sent_ = 0;
  bool end_of_file_ = false;
  bool reads_ahead_ = false;
  bool socket_is_empty_ = false;  // where it reads ahead: as its last answer said
  std::optional<std::byte> first_byte_;
  std::size_t received_bytes_ = 0;  // before it is established
  // RFC 8446, 5.5: AES-GCM may protect 2^24.5 records with one key.
  std::uint64_t records_per_key_ = 1u << 23;
  std::uint64_t records_written_ = 0;  // with the key in use
  // Of the failure.
  int socket_errno_ = 0;
  bool too_much_ = false;
  unsigned long error_ = 0;
  int certificate_error_ = 0;
  std::string certificate_validity_;
};

}  // namespace troupe::net
