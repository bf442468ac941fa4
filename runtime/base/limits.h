#pragma once
// Every maximum of the system with the reason for it. Queues, frames, files, waits: nothing is
// unbounded. Add yours here, with a sentence.

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace troupe::limits {

// A frame on a connection. Larger data travel beside frames (runtime/net/frame_reader.h).
inline constexpr std::size_t kFrameBytesMax = 64u << 20;
// What waits to be sent on one connection: four of the largest frames. Beyond it a send is refused
// (kOverloaded), but for small frames, which have a little more room: an answer that says that
// another one did not fit must reach its caller.
inline constexpr std::size_t kConnectionQueueBytesMax = 256u << 20;
inline constexpr std::size_t kSmallFrameBytesMax = 16u << 10;
inline constexpr std::size_t kSmallFramesReserveBytes = 1u << 20;
// What of a caller's arguments may wait to be sent on one connection before further calls wait with
// their caller: enough to keep the fastest network busy.
inline constexpr std::size_t kUnsentArgumentBytesMax = 64u << 20;
// Arguments and results may be as large as half of the memory that a process may use; this where
// the system does not say how much that is.
inline constexpr std::uint64_t kUnknownMemoryCallBytesMax = 1u << 30;
// While more than this of an actor's answers to one caller waits to be sent, the actor begins no
// further call of that caller. Calls that run already may each add a frame.
inline constexpr std::size_t kUnreadAnswerBytesMax = 64u << 20;
// Constructor arguments above this stay with the process that creates the actor, which sends them
// to each process of it.
inline constexpr std::size_t kSpecArgumentBytesMax = 64u << 10;
// Everything of variable size in the spec of one actor: the constructor's arguments and the
// environment, mostly. The head keeps it, with all others', in memory and in its journal, for as
// long as the actor may be started again.
inline constexpr std::size_t kActorSpecBytesMax = 1u << 20;
// The text of one failure where it travels; more of it is cut off. Whoever throws the contents of a
// file is still heard.
inline constexpr std::size_t kStatusTextBytesMax = 64u << 10;
// Cap'n Proto words that may be traversed in one message: 4 × the frame, against pointer bombs.
inline constexpr std::size_t kTraversalWordsMax = 4 * kFrameBytesMax / 8;
// Nesting of a Cap'n Proto message.
inline constexpr int kMessageDepthMax = 64;
// What a list is answered by at once, as the journal would keep it
// (scheduler/control/list_piece.h): little for a head that others wait for, much for a connection.
inline constexpr std::size_t kListPieceBytes = 1u << 20;
// Of what a process says that it has under way (runtime/wire/work.h): so many of each kind, so many
// actors of all its groups together, and what all of it may take at the head.
inline constexpr std::size_t kWorkListedMax = 64;
inline constexpr std::size_t kWorkActorsMax = 4096;
inline constexpr std::size_t kWorkBytesMax = 1u << 20;
// Of each kind of tasks so many of the last ones are told one by one, of those that took so long:
// some kilobytes a second of a process that is busy, and shorter ones nobody would see in a trace.
inline constexpr std::size_t kTasksShownMax = 64;
inline constexpr std::chrono::milliseconds kTaskShownMin{1};
// Of what a node's object store has moved, to and from disk and other nodes: some 20 KiB.
inline constexpr std::size_t kStoreMovesShownMax = 256;
// Elements of one list in a message: above the largest cluster's actors, far below what would fill
// memory when every element claims to be empty.
inline constexpr std::size_t kWireListCountMax = 200'000;

// What a peer that has not authenticated may cost us.
inline constexpr std::chrono::seconds kHandshakeTimeout{5};
inline constexpr std::size_t kHandshakeTargetBytesMax = 256;
inline constexpr std::size_t kHandshakePendingMax = 1024;
// All that it may send in a TLS handshake.
inline constexpr std::size_t kHandshakeBytesMax = 64u << 10;
// Its first TLS message, which a listener looks at whole: ours have about 300 bytes, the largest
// in use below 2 KiB.
inline constexpr std::size_t kClientHelloBytesMax = 16u << 10;

// Configuration files (YAML, JSON): no honest one comes near.
inline constexpr std::size_t kConfigBytesMax = 1u << 20;
inline constexpr std::size_t kConfigDepthMax = 64;

// Data files in JSON that are read whole (tokenizer.json of 200,000 entries is 20 MB).
inline constexpr std::size_t kJsonFileBytesMax = 1u << 30;
// The reference implementation's limit for a safetensors header.
inline constexpr std::size_t kSafetensorsHeaderBytesMax = 100'000'000;

// The last lines of an actor's output that its node keeps in memory.
inline constexpr std::size_t kLogTailBytes = 64u << 10;
// A line of an actor's output; longer ones are cut into several.
inline constexpr std::size_t kLogLineBytesMax = 8u << 10;
// A piece of a kept segment that a node sends at once: enough for any progress record.
inline constexpr std::size_t kSegmentReadBytesMax = 64u << 10;
// A piece of a package that goes to a node at once: small beside what a connection holds, large
// beside what a message costs.
inline constexpr std::size_t kPackagePieceBytes = 1u << 20;
// Files, folders and links in a package. What has more of them is a file system, not a program.
inline constexpr std::size_t kPackageEntriesMax = 100'000;
inline constexpr std::size_t kPackageManifestBytesMax = 32u << 20;
// What a node keeps for an actor's process that does not read its socket: the start and some more
// messages, and no more descriptors than a process has to spare. Callers' connections are counted
// apart: however many come, they take no room of what the node itself must tell the process.
inline constexpr std::size_t kHostQueueBytesMax = 8u << 20;
inline constexpr std::size_t kHostQueueMessagesMax = 256;
inline constexpr std::size_t kHostQueueConnectionsMax = 128;
// A message between a node's daemon and its keeper: a command line with its environment.
inline constexpr std::size_t kKeeperPacketBytesMax = 128u << 10;
// Calls that may wait in one actor's mailbox; more are answered Overloaded.
inline constexpr std::size_t kMailboxCallsMax = 10'000;
// The same for a process of light actors, together: some calls for each of thousands.
inline constexpr std::size_t kLightMailboxCallsMax = 100'000;
// Light actors in one process. They share its one thread; more only make its end worse.
inline constexpr std::size_t kLightPerHostMax = 1'000'000;
// Members of a group: a call of all of them has a result for each in one process's memory.
inline constexpr std::size_t kGroupMembersMax = 1'000'000;
// Members of a pool, which looks at all of them for each call: beyond that, several pools.
inline constexpr std::size_t kPoolMembersMax = 1'000;

// Living actors of a cluster: as many as a head keeps in some 250 MiB and reads from its journal in
// less than two seconds (tools/bench journal).
inline constexpr std::size_t kActorsMax = 100'000;

// The head's journal. A head that is started again reads it before it answers, and all of it is
// written anew only when the first answers have left. So the file is bounded by the sum of what may
// be in it: what lives (beyond it new actors, groups, supervisors and jobs are refused; an actor
// without large arguments takes about 1 KiB of it), by how much living actors may grow (they are
// restarted, and it is kept why and when), what has ended and is remembered for people, of each of
// these four kinds, events, and what was appended since the last rewrite. The rest is for nodes.
// These are bounds: of actors that have much in common the file has a tenth of them.
inline constexpr std::size_t kJournalBytesMax = 400u << 20;
inline constexpr std::size_t kJournalLivingBytesMax = 192u << 20;
inline constexpr std::size_t kActorChangesBytesMax = 1536;
inline constexpr std::size_t kJournalEndedBytesMax = 4u << 20;
inline constexpr std::size_t kJournalEventBytesMax = 8u << 20;
inline constexpr std::size_t kJournalHistoryBytesMax = 16u << 20;
// One decision in the journal, unpacked: what a message brought, and what the head adds to it. A
// few packed bytes may claim to be any number of zeros.
inline constexpr std::size_t kDeltaBytesMax = 2 * kFrameBytesMax;
// What a node says of itself: its name, resources and labels.
inline constexpr std::size_t kNodeInfoBytesMax = 64u << 10;

static_assert(kJournalLivingBytesMax + kActorsMax * kActorChangesBytesMax +
                  4 * kJournalEndedBytesMax + kJournalEventBytesMax + kJournalHistoryBytesMax +
                  (16u << 20) <=
              kJournalBytesMax);
static_assert(kHandshakeTargetBytesMax < kFrameBytesMax);
static_assert(kPackageEntriesMax <= kWireListCountMax);
static_assert(kPackageManifestBytesMax <= kFrameBytesMax);
static_assert(kUnsentArgumentBytesMax < kConnectionQueueBytesMax / 2);
static_assert(kUnreadAnswerBytesMax + kFrameBytesMax < kConnectionQueueBytesMax);
static_assert(kSmallFrameBytesMax < kSmallFramesReserveBytes);
static_assert(2 * kActorSpecBytesMax < kHostQueueBytesMax);
static_assert(2 * kActorSpecBytesMax < kFrameBytesMax);
static_assert(2 * kStatusTextBytesMax < kFrameBytesMax);
static_assert(kClientHelloBytesMax < kHandshakeBytesMax);
static_assert(kTraversalWordsMax * 8 >= kFrameBytesMax);

}  // namespace troupe::limits
