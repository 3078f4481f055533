//! The API server as its clients meet it: in the process, over TLS, and by unmodified clients. One program, since each
//! program of tests compiles the whole server anew.

mod admission;
mod allocation;
mod apply;
mod authorization;
mod builtin;
mod common;
mod guarded;
mod hostile_nodes;
mod kube;
mod kubectl;
mod listening;
mod nonsense;
mod python;
mod rights;
mod subresources;
mod tokens;
mod upstream;
mod verbs;
mod watching;
