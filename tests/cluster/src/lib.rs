//! Stories in real machines and between real processes, one verdict each; all of them are under
//! `tests/`.
