// Whether this process may use the tile unit.
#pragma once

namespace deepinfer {

// Asks the system for the room that tiles take in a thread's saved state, once; true if the
// processor has the unit and the system grants it, to all threads and children of the process.
bool can_use_amx();

}  // namespace deepinfer
