//! The stranger here is another local user, and whoever answers where a Plimsoll should.
