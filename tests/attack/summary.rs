//! The stranger here is a conversation that wants its summary to speak as the user.
