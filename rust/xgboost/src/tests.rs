use crate::read_model;

#[test]
fn garbage_is_refused() {
    for bytes in [&b""[..], b"{", b"{}", b"binf", b"{L\xff\xff\xff\xff\xff\xff\xff\xff", b"[[[[", b"\xff\xfe"]
    {
        assert!(read_model(bytes).is_err(), "{bytes:?}");
    }
}
