#pragma once
// TCP between processes of one machine.

namespace troupe {

// Whether a connected TCP socket has the same address at both ends: they are on one machine. False
// for every other socket.
bool within_machine(int socket);

// For such a socket: nothing is lost or shared within a machine, and there is no rate to be found
// out. Where the system's algorithm paces (BBR), it lets the sender sleep between packets that the
// receiver would take at once. Reno does not; everybody may choose it, and every kernel has it. A
// refusal only costs speed.
void end_pacing(int socket);

}  // namespace troupe
