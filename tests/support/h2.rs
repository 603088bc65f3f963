//! Both ends of HTTP/2, by hyper, with bodies that the test feeds frame by frame.
