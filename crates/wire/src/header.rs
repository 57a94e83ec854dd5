//! Header blocks: `NATS/1.0[ status[ description]]\r\n`, lines `Name: Value\r\n`, and an empty line (ADR-4).
