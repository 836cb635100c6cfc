/* codecs.h - the one list of codec texts. Tests, the bench and the picture of all methods take their codecs from here, so a new
   method takes one line here, and one more for each of its parameters. Each column:

   digest    what test_digest must find on every machine. Write 0 in a new line, run test_digest, and paste what it found.
   family    the method's group: its colour in the picture, and a filter for tests of one group
   bench     1: bench/bench.c measures this codec
   picture   1: this codec is a point in the picture of all methods (examples/train/train_methods.h)
   steps     1: tests which run each codec in many groups of workers take this one. Their tensors are small: a sparse codec
             needs a large density there, and dgc no warm-up. One or two lines a method are enough.
   text      as gcomp_codec_parse reads it. Each method stands here with its defaults too.

   What follows from the text is not in the list: codec_has_payload and codec_is_sparse below ask the library. */
#ifndef CODECS_H
#define CODECS_H

#include "gcomp.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { SMALL_FLOATS, INTEGERS, RANDOM_LEVELS, SIGNS_ONLY, LARGEST_ONLY, LOW_RANK, FAMILIES };

static const struct listed_codec {
    uint64_t digest;
    int family, bench, picture, steps;
    const char *text;
} codec_list[] = {
    /* digest              family      bench picture steps  text */
    {0x82cb2984d1f82a3eu, SMALL_FLOATS,  1, 0, 1, "none"},
    {0xc243432c931ecb0cu, SMALL_FLOATS,  1, 1, 1, "fp16"},
    {0xb407b48d8423ad80u, SMALL_FLOATS,  1, 1, 1, "bf16"},
    {0x6f6131f17100a68fu, SMALL_FLOATS,  1, 0, 0, "fp16:rounding=stochastic"},
    {0x0322978b454253b3u, SMALL_FLOATS,  1, 0, 0, "bf16:rounding=stochastic"},
    {0x6468267a0428ec6fu, SMALL_FLOATS,  1, 1, 1, "fp8"},
    {0x4de4110d7b5a50cdu, SMALL_FLOATS,  0, 0, 0, "fp8:block=16"},
    {0xe288e6888e507eefu, SMALL_FLOATS,  0, 1, 0, "fp8:format=e5m2"},
    {0x2b67df6c892ae199u, SMALL_FLOATS,  0, 0, 0, "fp8:format=e5m2,block=tensor"},
    {0xdfcd9db99f2e07eau, SMALL_FLOATS,  1, 1, 1, "mx"},
    {0x828e20641b09bd12u, SMALL_FLOATS,  1, 1, 0, "mx:format=e4m3"},
    {0xaf368c8089772d78u, SMALL_FLOATS,  0, 1, 0, "mx:format=e5m2"},
    {0x2b1e3a4490fe14edu, SMALL_FLOATS,  0, 1, 0, "mx:format=int8"},
    {0xb6ff06ba906b75d8u, SMALL_FLOATS,  1, 1, 0, "mx:format=e2m3"},
    {0x3918bbc58bb42358u, SMALL_FLOATS,  0, 1, 0, "mx:format=e3m2"},
    {0x29c45b0a90c025ccu, SMALL_FLOATS,  1, 1, 1, "e3m0"},
    {0x72e1928efd9a8a00u, SMALL_FLOATS,  1, 1, 1, "nvfp4"},
    {0xd8c750a3ba904785u, LARGEST_ONLY,  0, 0, 0, "topk:density=0.1+nvfp4"},
    {0xad4bdc106c9ab88eu, SMALL_FLOATS,  0, 0, 0, "e3m0:block=16"},
    {0xb840ae97e9a8d258u, SMALL_FLOATS,  0, 0, 0, "e3m0:block=tensor"},
    {0xee667ad9da54d63cu, SMALL_FLOATS,  1, 1, 1, "nf4"},
    {0x26edeebdf3aac38fu, SMALL_FLOATS,  0, 0, 0, "nf4:block=16"},
    {0x67aa22ca70878925u, SMALL_FLOATS,  0, 0, 0, "nf4:block=4096"},
    {0xb072d5dcf5656679u, LARGEST_ONLY,  0, 0, 0, "topk:density=0.1+nf4"},
    {0x9aa6cb81fe9c4d90u, INTEGERS,      1, 1, 1, "int"},
    {0x6b3b6b50cd6ee550u, INTEGERS,      1, 1, 0, "int:bits=4"},
    {0x10b69f47e9c2d855u, INTEGERS,      1, 1, 0, "int:bits=2"},
    {0x328f193c97b088c3u, INTEGERS,      0, 0, 0, "int:bits=4,block=16"},
    {0xd346314e35d8b735u, INTEGERS,      0, 0, 0, "int:bits=4,block=tensor"},
    {0xe485d7450f57ee2du, INTEGERS,      0, 0, 0, "int:bits=2,block=tensor"},
    {0x2f7dd55049b8141eu, INTEGERS,      1, 1, 0, "int:rounding=stochastic"},
    {0x369cbdeb3c657d78u, INTEGERS,      0, 1, 0, "int:bits=4,rounding=stochastic"},
    {0xd5b1e448b6439c47u, INTEGERS,      0, 0, 1, "int:bits=2,rounding=stochastic"},
    {0x68866fbfc011e178u, INTEGERS,      0, 0, 0, "int:bits=2,block=16,rounding=stochastic"},
    {0x83ff39714bdbe5c9u, INTEGERS,      1, 1, 1, "int:range=affine"},
    {0x35d5528fbd2813a8u, INTEGERS,      0, 0, 0, "int:bits=4,range=affine"},
    {0xd8256e62c66b94a7u, INTEGERS,      0, 0, 0, "int:bits=2,range=affine"},
    {0x1e4e780fc730db7du, INTEGERS,      0, 0, 0, "int:block=tensor,range=affine"},
    {0x6d02811d216a5ebfu, INTEGERS,      0, 0, 0, "int:bits=2,block=16,range=affine"},
    {0xab9580563177d355u, INTEGERS,      0, 0, 0, "int:rounding=stochastic,range=affine"},
    {0xfcb23668afcdcc60u, INTEGERS,      0, 0, 0, "int:bits=4,block=32,rounding=stochastic,range=affine"},
    {0xbc72a401a011ef8au, INTEGERS,      0, 0, 0, "int:bits=2,block=tensor,rounding=stochastic,range=affine"},
    {0x5bac2604c8950753u, INTEGERS,      1, 0, 0, "intsum"},
    {0xb677ada8567c0830u, INTEGERS,      0, 0, 0, "intsum:rounding=nearest"},
    {0x45b668a5f7a63342u, INTEGERS,      1, 0, 0, "intsum:bits=16"},
    {0x7bc05206141dd0e6u, INTEGERS,      0, 0, 0, "intsum:bits=32"},
    {0x80e80b81c44dc03au, INTEGERS,      0, 0, 0, "intsum:bits=32,rounding=nearest"},
    {0xca0ee64530fe6e57u, RANDOM_LEVELS, 1, 1, 0, "qsgd"},
    {0x0f9b1267cb519410u, RANDOM_LEVELS, 1, 1, 0, "qsgd:levels=1"},
    {0xbb5c1294c14cf350u, RANDOM_LEVELS, 1, 1, 0, "qsgd:levels=127"},
    {0x7f6cdbcdb0bc3a9fu, RANDOM_LEVELS, 0, 0, 0, "qsgd:levels=1000"},
    {0xaa50e0e36ce395a7u, RANDOM_LEVELS, 0, 0, 0, "qsgd:levels=32767"},
    {0x244ae9856816ccaeu, RANDOM_LEVELS, 0, 0, 0, "qsgd:levels=1,bucket=16"},
    {0xe34b1a1d3cb5cb78u, RANDOM_LEVELS, 0, 0, 0, "qsgd:levels=2,bucket=16"},
    {0x03521b06c45d74cfu, RANDOM_LEVELS, 0, 0, 0, "qsgd:levels=1000,bucket=16"},
    {0xfa34a16732afcee6u, RANDOM_LEVELS, 0, 0, 0, "qsgd:levels=5,bucket=65536"},
    {0xdd03868a947015b3u, RANDOM_LEVELS, 0, 0, 0, "qsgd:levels=1,norm=l2,bucket=tensor"},
    {0x5c7c91e5786666eeu, RANDOM_LEVELS, 0, 0, 0, "qsgd:levels=16,norm=l2"},
    {0x8396ee1bcb0fd286u, RANDOM_LEVELS, 0, 0, 0, "qsgd:levels=100,norm=l2"},
    {0x42c5cd524ea58583u, RANDOM_LEVELS, 1, 1, 1, "qsgd:code=entropy"},
    {0xd2941eb7f87b572au, RANDOM_LEVELS, 1, 1, 0, "qsgd:levels=1,code=entropy"},
    {0xc1e80e3f5973c939u, RANDOM_LEVELS, 1, 0, 1, "qsgd:levels=4,code=entropy"},
    {0x149fe2d56a90a88au, RANDOM_LEVELS, 0, 0, 0, "qsgd:levels=4,norm=l2,code=entropy"},
    {0x4b9b90b294c37a83u, RANDOM_LEVELS, 0, 0, 0, "qsgd:levels=4,norm=l2,bucket=tensor,code=entropy"},
    {0xc4e0f08fd1870a79u, RANDOM_LEVELS, 0, 0, 0, "qsgd:levels=1,bucket=16,code=entropy"},
    {0x36612a4ecbbc744cu, RANDOM_LEVELS, 0, 0, 0, "qsgd:levels=127,code=entropy"},
    {0xbb3b6473f01eb9d8u, RANDOM_LEVELS, 0, 0, 0, "qsgd:levels=127,bucket=65536,code=entropy"},
    {0x31a5b720b3ea5428u, RANDOM_LEVELS, 1, 1, 1, "qsgd:spacing=powers"},
    {0x78ffed734e4086f2u, RANDOM_LEVELS, 0, 0, 0, "qsgd:levels=30,spacing=powers"},
    {0xe380b79cb845fc83u, RANDOM_LEVELS, 0, 0, 0, "qsgd:levels=9,norm=l2,spacing=powers"},
    {0x2b9cc642d54b9718u, RANDOM_LEVELS, 0, 0, 0, "qsgd:levels=100,bucket=tensor,spacing=powers"},
    {0xb0f55d9b0323b97fu, RANDOM_LEVELS, 0, 0, 0, "qsgd:code=entropy,spacing=powers"},
    {0x6f151243d191ad2au, RANDOM_LEVELS, 0, 0, 0, "qsgd:levels=100,norm=l2,bucket=16,code=entropy,spacing=powers"},
    {0xf3d8b20385fa4a5bu, RANDOM_LEVELS, 1, 1, 1, "natural"},
    {0xc095bab1c09e9005u, RANDOM_LEVELS, 1, 1, 1, "terngrad"},
    {0x0b349ba7a9a74fe8u, RANDOM_LEVELS, 0, 0, 0, "terngrad:clip=0,block=16"},
    {0xbca0e9172d3ad310u, RANDOM_LEVELS, 0, 0, 0, "terngrad:clip=0,block=128"},
    {0xc095bab1c09e9005u, RANDOM_LEVELS, 0, 0, 1, "terngrad:share=1"},
    {0x70c83458c481ba2au, RANDOM_LEVELS, 0, 0, 1, "terngrad:code=entropy"},
    {0x66d0ebff228ec593u, RANDOM_LEVELS, 0, 0, 0, "terngrad:block=16,code=entropy"},
    {0x95f453b9d043a5f9u, RANDOM_LEVELS, 1, 1, 1, "eden"},
    {0x58ff34febf4d9706u, RANDOM_LEVELS, 1, 1, 0, "eden:bits=2"},
    {0x458892070c1dfd41u, RANDOM_LEVELS, 0, 1, 0, "eden:bits=3"},
    {0xb677aab4e0eb6597u, RANDOM_LEVELS, 1, 1, 0, "eden:bits=4"},
    {0x0cfe725ff61c6a5du, RANDOM_LEVELS, 0, 0, 0, "eden:bits=2,block=64"},
    {0x8aba5fc9c7f36305u, RANDOM_LEVELS, 0, 0, 0, "eden:bits=3,block=65536"},
    {0x0801a943d54d6dbbu, RANDOM_LEVELS, 0, 0, 1, "eden:bits=4,block=64"},
    {0x5b85f2d1c62f8da7u, RANDOM_LEVELS, 0, 0, 0, "eden:bits=4,block=1024"},
    {0xde6d7fd460ab4f48u, RANDOM_LEVELS, 0, 0, 1, "eden:bits=3,feedback=1"},
    {0x3dd964c85bcc7e28u, SIGNS_ONLY,    1, 1, 1, "sign"},
    {0x5c58af5da4138416u, SIGNS_ONLY,    0, 0, 0, "sign:block=16"},
    {0x5e32bf9f1c8b036bu, SIGNS_ONLY,    0, 0, 0, "sign:block=65536"},
    {0x0a00601b5958690fu, SIGNS_ONLY,    1, 1, 0, "sign:block=tensor"},
    {0x8ba37f2178220e40u, SIGNS_ONLY,    1, 1, 1, "sign:scale=rms"},
    {0x3558b2cdbf52d5d9u, SIGNS_ONLY,    0, 0, 0, "sign:block=64,scale=rms"},
    {0xf2c90f98da543999u, SIGNS_ONLY,    0, 0, 0, "sign:block=tensor,scale=rms"},
    {0x8d0379169c7a573cu, SIGNS_ONLY,    1, 1, 0, "onebit"},
    {0x362fc181b5699df6u, SIGNS_ONLY,    0, 0, 0, "onebit:block=16"},
    {0x47c4f9711db79981u, SIGNS_ONLY,    0, 0, 1, "onebit:block=64"},
    {0x3984e08ccdae64e3u, SIGNS_ONLY,    0, 0, 0, "onebit:block=tensor"},
    {0x580a15eb88e87b87u, SIGNS_ONLY,    1, 1, 1, "vote"},
    {0x9516860facb3ea3fu, SIGNS_ONLY,    1, 0, 0, "twobit"},
    {0x8271e74c85c97c37u, SIGNS_ONLY,    1, 1, 1, "twobit:threshold=auto"},
    {0xd8dec51bb3c377b9u, SIGNS_ONLY,    1, 0, 0, "twobit:threshold=auto,rate=0.05"},
    {0xe72e142f53c94428u, SIGNS_ONLY,    1, 1, 1, "threshold1"},
    {0x03fa3957a80d4649u, SIGNS_ONLY,    0, 0, 0, "threshold1:threshold=0.1"},
    {0x7da54ec79b174c57u, LARGEST_ONLY,  1, 1, 0, "topk"},
    {0x431eca18928b59f2u, LARGEST_ONLY,  0, 1, 0, "topk:density=0.1"},
    {0x8b20b54fc42b2a37u, LARGEST_ONLY,  0, 1, 0, "topk:density=0.1+int:bits=4"},
    {0x10f3a0969ce206eeu, LARGEST_ONLY,  0, 1, 0, "topk+fp16"},
    {0x15fcba52b27059a2u, LARGEST_ONLY,  0, 1, 0, "topk+int:bits=4"},
    {0x0ed093059ad490bfu, LARGEST_ONLY,  1, 1, 0, "topk+sign"},
    {0x5592723e434f9201u, LARGEST_ONLY,  1, 1, 0, "topk:density=0.001"},
    {0x90cbae267a543e81u, LARGEST_ONLY,  0, 1, 0, "topk:density=0.001+int:bits=4"},
    {0xe9ab9997c20b77c7u, LARGEST_ONLY,  0, 0, 0, "topk:density=0.001+fp16"},
    {0x7b4f470a973a906fu, LARGEST_ONLY,  0, 0, 0, "topk:density=0.02,global=1"},
    {0x6cffb692c49d7d1eu, LARGEST_ONLY,  0, 0, 0, "topk:density=0.05"},
    {0xa64c2c67b1fd5f05u, LARGEST_ONLY,  0, 0, 0, "topk:density=0.05+sign"},
    {0x115a7e020945763fu, LARGEST_ONLY,  0, 0, 0, "topk:density=0.1+natural"},
    {0x8e31ec3c9f448169u, LARGEST_ONLY,  0, 0, 1, "topk:density=0.2,global=1"},
    {0x53888f0a1fc5d3c2u, LARGEST_ONLY,  0, 0, 1, "topk:density=0.1,global=1+int"},
    {0xa0700b22dbbc038du, LARGEST_ONLY,  0, 0, 0, "topk:density=0.2+sign:block=16"},
    {0x4da630576606edc1u, LARGEST_ONLY,  0, 0, 1, "topk:density=0.3"},
    {0x0f3f5cc116ab7bf9u, LARGEST_ONLY,  0, 0, 1, "topk:density=0.3+int:bits=4,block=16"},
    {0x0831a5e185639ce6u, LARGEST_ONLY,  0, 0, 0, "topk:density=0.3+qsgd:bucket=16"},
    {0xf9638ea94754b952u, LARGEST_ONLY,  0, 0, 0, "topk:density=0.5+mx:format=e2m3"},
    {0x2548101386794f02u, LARGEST_ONLY,  0, 0, 0, "topk:density=1"},
    {0x53441eb5e64f1fceu, LARGEST_ONLY,  0, 0, 0, "topk:density=1+bf16"},
    {0x5149218309515345u, LARGEST_ONLY,  0, 0, 0, "topk:density=1e-9"},
    {0xcdffdd41fd506414u, LARGEST_ONLY,  0, 0, 0, "topk:density=0.05+onebit:block=tensor"},
    {0xaf8a37e4da5e169eu, LARGEST_ONLY,  1, 0, 0, "topk:exact=0"},
    {0x8f7ef876fde38a31u, LARGEST_ONLY,  0, 0, 1, "topk:density=0.2,exact=0"},
    {0xee7417f4bbb5efd8u, LARGEST_ONLY,  0, 0, 0, "topk:density=0.3,exact=0+int"},
    {0x241290ffb015b4dcu, LARGEST_ONLY,  0, 0, 1, "topk:density=0.1,chunk=100"},
    {0x3c3e75a66fd015d2u, LARGEST_ONLY,  1, 0, 0, "topk:density=0.015625,chunk=4096+int:bits=2,block=1024"},
    {0xaab7d538ee2d501cu, LARGEST_ONLY,  1, 0, 0, "dryden"},
    {0x1d31e84d1c5ae270u, LARGEST_ONLY,  0, 0, 1, "dryden:density=0.1"},
    {0x3f2da15b1394cf4au, LARGEST_ONLY,  0, 0, 0, "dryden:density=0.1+onebit:block=tensor"},
    {0x37e4a738c4d0da4du, LARGEST_ONLY,  0, 0, 0, "dryden:density=0.2+sign"},
    {0x5895869d8eb13028u, LARGEST_ONLY,  0, 0, 1, "strom"},
    {0xd88b3e903a1e718au, LARGEST_ONLY,  1, 0, 0, "strom:threshold=0.0026+sign"},
    {0x78b9a7d35aefb85eu, LARGEST_ONLY,  0, 0, 1, "strom:threshold=0.4,send=value"},
    {0xa42f103f96bc30c9u, LARGEST_ONLY,  0, 0, 0, "strom:threshold=0.5+onebit:block=tensor"},
    {0xca3accc3c245de10u, LARGEST_ONLY,  1, 0, 1, "nonzero"},
    {0xd52b34e3f9cdea06u, LARGEST_ONLY,  0, 0, 0, "nonzero+int:bits=4"},
    {0x3fe4cc2990875078u, LARGEST_ONLY,  1, 1, 0, "wangni"},
    {0x1c689f89dd44d747u, LARGEST_ONLY,  0, 0, 1, "wangni:density=0.3"},
    {0xd9f4c57aef7128d8u, LARGEST_ONLY,  0, 0, 0, "wangni:density=0.3+qsgd:levels=127"},
    {0x4bac6ac42102a580u, LARGEST_ONLY,  1, 1, 1, "adacomp"},
    {0xc36edad9d07f5cddu, LARGEST_ONLY,  0, 0, 0, "adacomp:bin=1+onebit"},
    {0xf80574aa64c6ae7cu, LARGEST_ONLY,  0, 0, 0, "adacomp:bin=50,send=value"},
    {0x7a1dcfb742e96159u, LARGEST_ONLY,  0, 0, 0, "adacomp:bin=77+onebit:block=tensor"},
    {0x07bd1e89c27639b1u, LARGEST_ONLY,  0, 1, 0, "adacomp+onebit:block=tensor"},
    {0xb381778e286ecb01u, LARGEST_ONLY,  1, 1, 0, "blocktopk"},
    {0x73f55e3a4cead070u, LARGEST_ONLY,  0, 0, 1, "blocktopk:density=0.2,block=16"},
    {0x60639af65796340cu, LARGEST_ONLY,  0, 0, 0, "blocktopk:density=0.3,block=16+int:bits=4"},
    {0x9dde44700773761eu, LARGEST_ONLY,  0, 0, 0, "blocktopk:density=0.02,block=65536+fp8"},
    {0x97082265235bdd01u, LARGEST_ONLY,  0, 0, 0, "dgc"},
    {0xde5ff240eb03d5aeu, LARGEST_ONLY,  1, 0, 0, "dgc:warmup=0"},
    {0x0f6c269dda146e73u, LARGEST_ONLY,  0, 0, 0, "dgc:density=0.1,warmup=2"},
    {0x88e6e7fd35ff9311u, LARGEST_ONLY,  0, 0, 1, "dgc:density=0.2,warmup=0"},
    {0x0781d456fb63e493u, LARGEST_ONLY,  0, 0, 1, "dgc:density=0.2,nesterov=1,masking=0,warmup=0"},
    {0x4e55a382c8a8e383u, LARGEST_ONLY,  0, 0, 1, "dgc:density=0.2,clip=1,warmup=0"},
    {0x98ccf4afa7fa7397u, LARGEST_ONLY,  0, 0, 0, "dgc:density=0.05,momentum=0.7,nesterov=1,clip=10,masking=0,warmup=0+int"},
    {0xceea9c81860c21afu, LARGEST_ONLY,  1, 0, 0, "randomk"},
    {0x21dfa0ab23a993d8u, LARGEST_ONLY,  0, 0, 0, "randomk:density=0.1"},
    {0x6103b59129e1ba15u, LARGEST_ONLY,  0, 0, 1, "randomk:density=0.2"},
    {0x54e2b252f40a391bu, LARGEST_ONLY,  0, 0, 0, "randomk:density=0.1,unbiased=1"},
    {0x86053852f3304a46u, LARGEST_ONLY,  1, 0, 0, "randomk:neighbours=1"},
    {0xa1b00abd18013e7fu, LARGEST_ONLY,  0, 0, 1, "randomk:density=0.2,neighbours=1"},
    {0x422e4f8b561dae01u, LARGEST_ONLY,  0, 0, 0, "randomk:density=0.1,unbiased=1,neighbours=1"},
    {0x72eef3446490e064u, LARGEST_ONLY,  1, 1, 0, "leadertopk"},
    {0xbc4a06c65e2f7fb3u, LARGEST_ONLY,  0, 1, 0, "leadertopk:density=0.01"},
    {0x74fe041bac1d98e7u, LARGEST_ONLY,  0, 0, 1, "leadertopk:density=0.2"},
    {0x1e9d5e643b19c2cbu, LARGEST_ONLY,  0, 0, 0, "leadertopk:density=0.7"},
    {0x08ac18d3c483db93u, LARGEST_ONLY,  1, 1, 0, "sketch"},
    {0x53b38c38fb8760c5u, LARGEST_ONLY,  1, 0, 0, "sketch:columns=262144"},
    {0x08ac18d3c483db93u, LARGEST_ONLY,  0, 1, 0, "sketch:candidates=64"},
    {0xcdbe2bf8f5132a54u, LARGEST_ONLY,  0, 0, 0, "sketch:density=0.02,rows=3,columns=512,candidates=2"},
    {0x9d137cc46f3bc8c4u, LARGEST_ONLY,  0, 0, 0, "sketch:density=0.1,rows=1,columns=64,candidates=1"},
    {0xdef4148eae3e4382u, LARGEST_ONLY,  1, 0, 0, "fetch"},
    {0x66d36588cdeb820cu, LARGEST_ONLY,  0, 0, 0, "fetch:density=0.02,rows=3,columns=512,momentum=0.5,zeroing=0"},
    {0xcbe6bbaba014fc7cu, LARGEST_ONLY,  0, 0, 0, "fetch:density=0.1,rows=7,columns=16"},
    {0xd397cd8c428ac2cdu, LARGEST_ONLY,  1, 1, 0, "dct"},
    {0x2fbf239f7a757bafu, LARGEST_ONLY,  0, 0, 1, "dct:top=20"},
    {0x8198adb9948a542bu, LARGEST_ONLY,  0, 1, 1, "dct:top=8,decay=0.9+int:bits=4"},
    {0x74a07223851b0876u, LARGEST_ONLY,  0, 0, 0, "dct:top=9,chunk=24,decay=0+bf16"},
    {0x9ce583c625a1a440u, LOW_RANK,      1, 1, 0, "powersgd"},
    {0xce8c3e7d34a25f2du, LOW_RANK,      1, 1, 0, "powersgd:rank=1"},
    {0x7f4367d05a0c74a5u, LOW_RANK,      1, 0, 1, "powersgd:rank=2"},
    {0xacf4700d1e37e560u, LOW_RANK,      0, 0, 0, "powersgd:rank=7"},
    {0x56d58fb3ea012ccau, LOW_RANK,      1, 1, 0, "powersgd:rank=16"},
    {0x8252b5ac423a98d5u, LOW_RANK,      0, 0, 0, "powersgd:rank=20"},
    {0x0fba771727167c5du, LOW_RANK,      0, 0, 1, "powersgd:rank=auto"},
    {0x0e067215c0dc4b7du, LOW_RANK,      0, 0, 0, "powersgd:rank=auto,share=2"},
    {0x66d89fd24e544e8eu, LOW_RANK,      1, 0, 0, "powersgd:alternate=1"},
    {0xc789f5b29d54e80du, LOW_RANK,      0, 0, 0, "powersgd:rank=3,alternate=1,momentum=0.9"},
    {0xa27d7144ebb5c765u, INTEGERS,      1, 1, 1, "int:bits=3"},
    {0x3e541b248984c169u, INTEGERS,      0, 0, 0, "int:bits=3,block=1024"},
    {0x5ea568250aca7613u, INTEGERS,      0, 0, 0, "int:bits=2,block=16"},
    {0xa35858e5eec1f600u, INTEGERS,      1, 1, 1, "lloyd"},
    {0x56c907cfe7089f90u, LARGEST_ONLY,  1, 1, 0, "topk+lloyd"},
    {0xdf6c50aa804eb8dau, LARGEST_ONLY,  0, 0, 1, "topk:density=0.3,global=1+lloyd"},
    {0xd67bea03f9fc99dfu, LARGEST_ONLY,  0, 0, 0, "topk:density=0.015625,chunk=4096+lloyd"},
    {0x8abf27cf3d4a266du, LARGEST_ONLY,  0, 0, 0, "blocktopk:density=0.2,block=16+lloyd"},
    {0x09ed5722e829f266u, SMALL_FLOATS,  1, 0, 1, "mx:rounding=stochastic"},
    {0x2d5bbeb77d29e004u, SMALL_FLOATS,  0, 0, 0, "mx:format=e4m3,rounding=stochastic"},
    {0xf283fa4cbbbcdd1bu, SMALL_FLOATS,  0, 0, 0, "mx:format=int8,rounding=stochastic"},
    {0x55fa8541dd0a3b64u, SMALL_FLOATS,  0, 0, 0, "mx:format=e3m2,rounding=stochastic"},
    {0x3ca44d82cb979bffu, SMALL_FLOATS,  1, 0, 0, "nvfp4:rounding=stochastic"},
    {0x5a8e99fcb86b6a38u, SMALL_FLOATS,  1, 0, 0, "fp8:rounding=stochastic"},
    {0x854836cb4174f3f0u, SMALL_FLOATS,  0, 0, 0, "fp8:format=e5m2,block=16,rounding=stochastic"},
    {0xc69f902970a31107u, SMALL_FLOATS,  0, 0, 0, "fp8:block=tensor,rounding=stochastic"},
    {0x71563eb65b36d705u, INTEGERS,      1, 1, 1, "ecsq"},
    {0x1f086598034a803bu, INTEGERS,      0, 1, 0, "ecsq:bits=1.2"},
    {0x3aba2a7d2af908c2u, INTEGERS,      1, 1, 0, "ecsq:bits=3.8"},
    {0x5d7e5c74518b259au, INTEGERS,      0, 0, 0, "ecsq:bits=0.5"},
    {0x871644001dc89ea0u, INTEGERS,      0, 0, 0, "ecsq:bits=6"},
    {0x61509d7d2117ebfau, SIGNS_ONLY,    1, 0, 1, "onebit:block=row"},
    {0x3d8054381ecfdc9cu, SIGNS_ONLY,    0, 0, 1, "sign:block=row"},
    {0x20f8d2b5d0d37304u, SIGNS_ONLY,    0, 0, 0, "sign:block=row,scale=rms"},
    {0x5138111fbd192e2cu, INTEGERS,      1, 0, 0, "ecsq:error=0.01"}
};
enum { ALL_CODECS = sizeof codec_list / sizeof *codec_list };

/* Does this codec write payloads alone? 0: it works in steps only, as powersgd and intsum do. */
static inline int codec_has_payload(const char *text)
{
    static unsigned char payload[GCOMP_BOUND(1)], scratch[GCOMP_SCRATCH(1)];
    const float one = 1;
    size_t length;
    gcomp_codec codec;
    gcomp_input in;
    gcomp_exec exec;
    memset(&in, 0, sizeof in);
    in.scale = 1;
    memset(&exec, 0, sizeof exec);
    in.grad = &one;
    in.rows = 1;
    in.key = gcomp_key_make(1, 0, 0, 0);
    exec.scratch = scratch;
    exec.scratch_bytes = sizeof scratch;
    return gcomp_codec_parse(&codec, text, NULL, 0) == GCOMP_OK && gcomp_bound(&codec, 1, NULL) != 0 &&
           gcomp_encode(&codec, &in, &exec, payload, sizeof payload, &length) == GCOMP_OK;
}

/* Does this method send some elements only, so that another codec may follow behind '+' for their values? */
static inline int codec_is_sparse(const char *text)
{
    gcomp_codec codec;
    char with_values[128];
    snprintf(with_values, sizeof with_values, "%.*s+bf16", (int)strcspn(text, ":+"), text);
    return gcomp_codec_parse(&codec, with_values, NULL, 0) == GCOMP_OK;
}

/* What a commit multiplies the residual by. */
static inline float codec_decay(const char *text)
{
    gcomp_codec codec;
    if (strncmp(text, "dct", 3) || gcomp_codec_parse(&codec, text, NULL, 0) != GCOMP_OK) return 1;
    return (float)codec.param[2];
}

#endif
